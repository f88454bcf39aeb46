"""``fuseboard doctor --checklist``: what the control plane found, as lines, and an exit code for CI.

It asks the REST API, with the variables of ``fuseboard ctl``: it needs neither Redis nor a gateway.
"""

import argparse
import sys
from enum import IntEnum

from msgspec import Struct

from fuseboard.cli.ctl.client import Client
from fuseboard.cli.ctl.exit_codes import Failed
from fuseboard.cli.ctl.output import clean, say, say_json
from fuseboard.cli.ctl.settings import CtlSettings

#: The width of a verdict in the output.
_MARKS = {"ok": "ok", "attention": "look", "missing": "MISS", "unchecked": "?", "confirm": "you"}
_WORDS = {
    "ok": "ok",
    "attention": "need attention",
    "missing": "missing",
    "unchecked": "cannot be checked here",
    "confirm": "to confirm by a person",
}


class ChecklistExit(IntEnum):
    """Documented in docs/checklist.md; pipelines depend on them."""

    READY = 0
    #: Something is missing; with ``--strict``, also something that needs attention.
    NOT_READY = 1
    #: The checklist was not read.
    UNREAD = 2


class ChecklistLine(Struct, frozen=True):
    key: str
    group: str
    check: str
    found: str
    verdict: str
    do: str = ""
    doc: str = ""


class Checklist(Struct, frozen=True):
    environment: str
    revision: int
    at: str
    counts: dict[str, int]
    lines: tuple[ChecklistLine, ...]


def run(given: argparse.Namespace) -> int:
    try:
        client = Client(CtlSettings.from_env(environment=given.environment))
        found = client.get("checklist", Checklist)
    except Failed as failure:
        sys.stderr.write(f"fuseboard doctor: {failure}\n")
        return ChecklistExit.UNREAD
    if given.json:
        say_json(found)
    else:
        _print(found)
    wrong = {"missing", "attention"} if given.strict else {"missing"}
    ready = not any(line.verdict in wrong for line in found.lines)
    return ChecklistExit.READY if ready else ChecklistExit.NOT_READY


def _print(found: Checklist) -> None:
    say(f"{clean(found.environment)}, revision {found.revision}, {clean(found.at)}")
    group = ""
    for line in found.lines:
        if line.group != group:
            group = line.group
            say(f"\n{clean(group)}")
        say(f"  {_MARKS.get(line.verdict, line.verdict):4}  {clean(line.check)}: {clean(line.found)}")
        if line.do:
            say(f"        -> {clean(line.do)} ({clean(line.doc)})")
    say("\n" + ", ".join(f"{number} {_WORDS.get(name, name)}" for name, number in found.counts.items()))
