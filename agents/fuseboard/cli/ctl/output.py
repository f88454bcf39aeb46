"""The output of a command: lines for people, or one document for programs."""

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from fuseboard.cli.ctl.documents import NewRevision

#: Characters that a terminal would obey instead of showing them.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def say_json(document: Any) -> None:
    say(msgspec.json.encode(document).decode())


def say_result(given: argparse.Namespace, document: Any, text: str) -> None:
    """Print the document with ``--json``, otherwise the text."""
    if given.json:
        say_json(document)
    else:
        say(text)


def say_revision(given: argparse.Namespace, made: NewRevision, done: str) -> None:
    """Print what an edit has done, and the revision that it made."""
    say_result(given, made, f"{done}, as revision {made.revision}.")


def confirmed(question: str, answer: str = "yes") -> bool:
    """Ask the person at the terminal. Only the whole ``answer`` confirms."""
    sys.stderr.write(f"{question}: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == answer


def clean(text: str) -> str:
    """Text of other people, made harmless for a terminal."""
    return _UNPRINTABLE.sub("\ufffd", text)


def table(rows: Sequence[Sequence[str]], *, heads: Sequence[str]) -> None:
    """Columns as wide as necessary. The last one is not padded."""
    shown = [list(heads), *([clean(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(heads))]
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        say("  ".join(cells).rstrip())


def moment(at: datetime | None) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC") if at is not None else ""


def span(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
