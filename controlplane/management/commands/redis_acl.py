"""Print the users of Redis "limits" as an ACL file: ``python manage.py redis_acl``."""

import re
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane import env
from controlplane.redis_acl import OLDEST, PROFILES, acl_file
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, is_slug

_VERSION = re.compile(r"[0-9]{1,3}(\.[0-9]{1,5}){0,2}", re.ASCII)
_ONE, _EACH = "FUSEBOARD_ACL_AGENT_PASSWORD", "FUSEBOARD_ACL_AGENT_PASSWORDS"


class Command(BaseCommand):
    help = (
        "Prints an aclfile for Redis or Valkey: a user agent-<environment> for the pods of each environment,"
        f" and control for the control plane. Passwords of pods come from {_EACH}, such as"
        f" production=...,staging=..., or with one environment from {_ONE}. That of the control plane comes"
        " from FUSEBOARD_ACL_CONTROL_PASSWORD. With _FILE, each variable names a file. Run it again after you"
        " create an environment."
    )
    # The file is made before there is any server.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--environment",
            action="append",
            default=[],
            help=f"may be given more than once (default: those of {_EACH}, or {DEFAULT_ENVIRONMENT})",
        )
        parser.add_argument(
            "--profile",
            choices=PROFILES,
            help="standard: pods load their scripts. hardened: pods only call functions, which the control"
            " plane loads (default: FUSEBOARD_ACL_PROFILE, or standard)",
        )
        parser.add_argument(
            "--server-version",
            type=_version,
            default=OLDEST,
            metavar="VERSION",
            help="of Redis or Valkey, such as 7.2: an older server refuses a file with commands that it does"
            " not know (default: 7.0)",
        )
        parser.add_argument(
            "--to", type=Path, metavar="FILE", help="write to this file, atomically; every user may read it"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        passwords = _passwords(options["environment"])
        control = env.text("FUSEBOARD_ACL_CONTROL_PASSWORD")
        if not control:
            raise CommandError("Set FUSEBOARD_ACL_CONTROL_PASSWORD.")
        profile = options["profile"] or env.choice("FUSEBOARD_ACL_PROFILE", PROFILES)
        try:
            text = acl_file(passwords, control, profile, options["server_version"])
        except ValueError as error:
            raise CommandError(str(error)) from error
        if options["to"] is None:
            self.stdout.write(text, ending="")
            return
        draft = options["to"].with_suffix(".new")
        draft.write_text(text)
        # The server runs as another user.
        draft.chmod(0o644)
        draft.replace(options["to"])


def _passwords(environments: list[str]) -> dict[str, str]:
    """The password of the pods of each environment. Raises ``CommandError``."""
    one, each = env.text(_ONE), env.pairs(_EACH)
    if one and each:
        raise CommandError(f"{_ONE} and {_EACH} are both set; set one of them.")
    wanted = environments or list(each) or [DEFAULT_ENVIRONMENT]
    if bad := [name for name in [*wanted, *each] if not is_slug(name)]:
        raise CommandError(f"{bad[0]} is not a valid environment name.")
    if one and len(set(wanted)) > 1:
        raise CommandError(
            f"{_ONE} is the password of one environment. Set {_EACH} to"
            f" {','.join(f'{name}=...' for name in wanted)}: no pod may log in for another environment."
        )
    found = each or ({wanted[0]: one} if one else {})
    if missing := [name for name in wanted if not found.get(name)]:
        raise CommandError(
            f"Set {_EACH} to {missing[0]}=..., with a comma before the next environment"
            f"{'' if each else f', or {_ONE} if there is one environment'}."
        )
    return {name: found[name] for name in wanted}


def _version(text: str) -> tuple[int, ...]:
    if not _VERSION.fullmatch(text):
        raise ArgumentTypeError("must be the version of the server, such as 7.0.15 or 7.2")
    version = tuple(int(part) for part in text.split("."))
    if version < OLDEST[: len(version)]:
        raise ArgumentTypeError("must be 7.0 or newer: an older server lacks commands that Fuseboard needs")
    return version
