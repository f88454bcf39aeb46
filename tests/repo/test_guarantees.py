"""Every guarantee names a test, and every named test exists."""

import re
from pathlib import Path

from tests.faults.rows import ROWS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
#: Rows of tables with an assumption, a falsification and a test.
PROMISES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and line.count("|") == 5 and not line.startswith("| promise")
]


def test_every_guarantee_has_a_falsification_and_a_test():
    assert len(PROMISES) > 20
    for promise, _, falsified_by, tried_by in PROMISES:
        assert falsified_by, promise
        assert re.search(r"\*[a-z-]+\*|tests/\S+::test_|every row", tried_by), promise


def test_every_row_that_is_named_exists_and_every_row_is_named():
    named = set(re.findall(r"(?<!\*)\*([a-z]+(?:-[a-z]+)*)\*(?!\*)", PAGE)) - {"italics"}
    rows = {row.name for row in ROWS}
    assert named <= rows
    # Rows for behaviour that is not guaranteed.
    assert rows - named == {
        "redis-bursts",
        "script-flush",
        "maxmemory",
        "acl-forgotten",
        "hot-key",
    }


def test_rows_have_distinct_numbers_and_names():
    assert len({row.number for row in ROWS}) == len({row.name for row in ROWS}) == len(ROWS)
