"""Print the users of Redis "limits" as an ACL file: ``python manage.py redis_acl``."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane import env
from controlplane.redis_acl import PROFILES, acl_file
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, is_slug


class Command(BaseCommand):
    help = (
        "Prints an aclfile for Redis or Valkey: a user agent-<environment> for pods, and control for the"
        " control plane. Passwords come from FUSEBOARD_ACL_AGENT_PASSWORD and"
        " FUSEBOARD_ACL_CONTROL_PASSWORD, or from the files that these with _FILE name."
    )
    # The file is made before there is any server.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--environment",
            action="append",
            default=[],
            help=f"may be given more than once (default: {DEFAULT_ENVIRONMENT})",
        )
        parser.add_argument(
            "--profile",
            choices=PROFILES,
            help="standard: pods load their scripts. hardened: pods only call functions, which the control"
            " plane loads (default: FUSEBOARD_ACL_PROFILE, or standard)",
        )
        parser.add_argument("--to", type=Path, metavar="FILE", help="write to this file, atomically")

    def handle(self, *args: Any, **options: Any) -> None:
        environments = options["environment"] or [DEFAULT_ENVIRONMENT]
        if bad := [name for name in environments if not is_slug(name)]:
            raise CommandError(f"{bad[0]} is not a valid environment name.")
        agent = env.text("FUSEBOARD_ACL_AGENT_PASSWORD")
        control = env.text("FUSEBOARD_ACL_CONTROL_PASSWORD")
        if not agent or not control:
            raise CommandError("Set FUSEBOARD_ACL_AGENT_PASSWORD and FUSEBOARD_ACL_CONTROL_PASSWORD.")
        if agent == control:
            raise CommandError("Pods and the control plane must have different passwords.")
        profile = options["profile"] or env.choice("FUSEBOARD_ACL_PROFILE", PROFILES)
        try:
            text = acl_file(dict.fromkeys(environments, agent), control, profile)
        except ValueError as error:
            raise CommandError(str(error)) from error
        if options["to"] is None:
            self.stdout.write(text, ending="")
            return
        draft = options["to"].with_suffix(".new")
        draft.write_text(text)
        draft.replace(options["to"])
