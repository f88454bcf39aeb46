"""Mute what an upgrade causes: ``python manage.py begin_upgrade --for 15m``, and ``--end`` afterwards."""

import re
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandParser

from controlplane.alerts.people.upgrades import MAX_MINUTES, MUTED_RULES, begin_upgrade, end_upgrade
from controlplane.installation import COMMAND
from controlplane.management.edit_command import EditCommand

_DURATION = re.compile(r"([1-9][0-9]{0,4})([smh])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Command(EditCommand):
    help = (
        f"Mutes the alerts {', '.join(MUTED_RULES)} in every environment while you replace processes."
        " It ends by itself, is on the page of the mutes, and in the audit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--for",
            dest="minutes",
            type=_minutes,
            default=15,
            metavar="DURATION",
            help=f"such as 15m, at most {MAX_MINUTES}m (default: 15m)",
        )
        parser.add_argument("--end", action="store_true", help="end it now: everything is replaced")
        parser.add_argument("--reason", default="Upgrade of Fuseboard", help="recorded in the audit")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["end"]:
            ended = end_upgrade(reason=options["reason"])
            self.stdout.write(
                "The upgrade has ended: alerts are sent again." if ended else "No upgrade was in progress."
            )
            return
        until = begin_upgrade(minutes=options["minutes"], reason=options["reason"])
        if until is None:
            self.stdout.write("There is no environment, so no alert to mute.")
            return
        self.stdout.write(
            f"Alerts about workers and gateways are muted until {until:%H:%M:%S} UTC. Gateways know within"
            f" 5 s: then stop the worker. Afterwards: {COMMAND} begin_upgrade --end"
        )


def _minutes(text: str) -> int:
    match = _DURATION.fullmatch(text)
    # Whole minutes, and never fewer than were asked for.
    minutes = -(-int(match[1]) * _SECONDS[match[2]] // 60) if match else 0
    if not 1 <= minutes <= MAX_MINUTES:
        raise ArgumentTypeError(f"must be a duration of at most {MAX_MINUTES}m, such as 15m or 1h")
    return minutes
