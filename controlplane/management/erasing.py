"""The common part of the commands that erase."""

import sys
from typing import Any

import structlog
from django.core.management.base import CommandParser

from controlplane.audit.actor import COMMAND_LINE
from controlplane.erasure import erase

log = structlog.get_logger(__name__)


def add_reason(parser: CommandParser) -> None:
    parser.add_argument("--reason", default="Erased on the command line.", help="recorded in the audit")


def erase_caller(*, kind: str, value: str, options: dict[str, Any]) -> str:
    """Erase, and return what was erased in words. ``-`` reads the caller from the input.

    Raises ``EditError``.
    """
    if value == "-":
        value = sys.stdin.readline()
    erased = erase(
        environment=options["environment"],
        kind=kind,
        value=value.strip(),
        reason=options["reason"],
        actor=COMMAND_LINE,
    )
    # Without the caller: the log would keep what is erased here.
    log.info("erasure.done", environment=options["environment"], kind=kind, erased=erased.words)
    later = "Figures and samples of the last minute are written later"
    return f"Erased {erased.words}. {later}: erase it again after two minutes."
