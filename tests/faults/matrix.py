"""The rows of the matrix, and how one runs: break, watch, heal, check that nothing is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.field import Broken, Field, Skip

Play = Callable[[Field], str]


@dataclass(frozen=True)
class Row:
    #: The number in the matrix; several rows may share one set-up.
    number: str
    name: str
    #: Returns the figure; raises ``Broken`` or ``Skip``.
    play: Play
    #: Also runs in ``make test``.
    short: bool
    #: It measures how long callers wait, so no other row runs meanwhile.
    quiet: bool = False


@dataclass(frozen=True)
class Verdict:
    word: str
    row: Row
    said: str
    took_s: float

    def __str__(self) -> str:
        separator = f"{self.row.number} {self.row.name}"
        return f"{self.word} {separator}: {self.said} ({self.took_s:.1f} s)"


ROWS: list[Row] = []


def row(number: str, name: str, *, short: bool = False, quiet: bool = False) -> Callable[[Play], Play]:
    """Add a function to the matrix."""

    def enter(play: Play) -> Play:
        ROWS.append(Row(number, name, play, short, quiet))
        return play

    return enter


def play(row: Row, field: Field) -> Verdict:
    """Run one row; whatever happens, the field is healed and checked afterwards."""
    began = time.monotonic()
    word, said = "ok", ""
    try:
        said = row.play(field)
    except Skip as why:
        word, said = "skip:", str(why)
    except Exception as error:
        word, said = "FAIL", str(error) if isinstance(error, Broken) else repr(error)
    try:
        field.heal()
        field.settle()
        wrong = field.leaks()
    except Exception as error:
        wrong = str(error) if isinstance(error, Broken) else repr(error)
    if wrong:
        word, said = "FAIL", f"{said}; AFTERWARDS {wrong}"
        field.healthy = _begin_pods_again(field)
    return Verdict(word, row, said, time.monotonic() - began)


def _begin_pods_again(field: Field) -> bool:
    """Damage of one row must not fail the next; ``False`` when only a new world helps."""
    try:
        for pod in field.pods:
            pod.go_on()
            pod.kill()
        field.heal()
        field.settle()
    except Exception:
        return False
    field.baseline = {pod.name: pod.state() for pod in field.pods}
    return True
