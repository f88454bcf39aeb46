"""Write the files for Prometheus, Alertmanager and Grafana: ``python manage.py write_monitoring``."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane import installation
from controlplane.monitoring.files import FILES, FOLDER
from controlplane.monitoring.prometheus_rules import EXAMPLE_URL


class Command(BaseCommand):
    #: It needs no store.
    requires_system_checks = ()
    help = "Writes the files for Prometheus, Alertmanager and Grafana: those of docs, or your own."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--folder", help="write the files of docs/monitoring here, and nothing else")
        parser.add_argument("--url", default=EXAMPLE_URL, help="of your dashboard, for links to runbooks")

    def handle(self, *args: Any, folder: str | None, url: str, **options: Any) -> None:
        if folder is None and not installation.IS_CHECKOUT:
            raise CommandError("Only a checkout has a folder docs. Name one of yours with --folder.")
        for path, text in FILES.items():
            if folder is None:
                file = installation.FOLDER / path
            elif path.startswith(FOLDER):
                file = Path(folder) / path.removeprefix(FOLDER)
            else:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text().replace(EXAMPLE_URL, url.rstrip("/")))
            self.stdout.write(str(file))
