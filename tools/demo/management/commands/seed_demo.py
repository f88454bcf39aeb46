"""The demo's configuration, users and token, for an installation with real servers.

``make demo`` includes this; the compose file's profile ``demo`` calls it.
"""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.checks import CONFIGURATION
from tools.demo.seed import seed


class Command(BaseCommand):
    #: The other checks load every page.
    requires_system_checks = (CONFIGURATION,)
    help = "Fills an installation with the demo's configuration, users and a token for its pods."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--token-file", type=Path, required=True, help="write the pods' token to this file"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        seeded = seed()
        file: Path = options["token_file"]
        draft = file.with_suffix(".new")
        # Readable by its owner only from the start, and complete before it appears.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.write(seeded.agent_token)
        draft.replace(file)
        for role, password in seeded.logins.items():
            self.stdout.write(f"{role}: {password}")
