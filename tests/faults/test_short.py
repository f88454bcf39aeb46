"""The short form of the matrix: the rows of ``make faults`` that fit into ``make test``."""

from collections.abc import Iterator

import pytest

from tests.faults.field import Field, field
from tests.faults.matrix import play
from tests.faults.rows import ROWS, Row


@pytest.fixture(scope="module")
def world() -> Iterator[Field]:
    with field(short=True) as world:
        yield world


@pytest.mark.parametrize("row", [row for row in ROWS if row.short], ids=lambda row: row.name)
def test_a_guarantee_holds_during_the_fault(row: Row, world: Field):
    verdict = play(row, world)
    if verdict.word == "skip:":
        pytest.skip(verdict.said)
    assert verdict.word == "ok", str(verdict)
