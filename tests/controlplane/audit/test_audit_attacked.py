"""Attacks on the check of the audit, and on readers of its export."""

import csv
import io
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.backends.utils import CursorWrapper
from django.test.utils import CaptureQueriesContext

from controlplane.audit import chain
from controlplane.audit.chain import Head, verify
from controlplane.audit.export import export
from controlplane.audit.models import Entry
from controlplane.audit.record import record
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)


def note(reason: str = "for a test") -> None:
    with transaction.atomic():
        record(
            actor=ADA,
            action="thing.done",
            target_kind="thing",
            target_name="one",
            before=None,
            after={"n": 1},
            reason=reason,
        )


def test_entries_written_during_the_check_do_not_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    note()
    hashed, written = chain._hash, []

    def meanwhile() -> None:
        try:
            note()
        finally:
            connections.close_all()

    def hash_and_write(previous: str, row: Any) -> str:
        if not written:
            written.append(threading.Thread(target=meanwhile))
            written[0].start()
            written[0].join(20)
        return hashed(previous, row)

    monkeypatch.setattr(chain, "_hash", hash_and_write)
    good, broken = verify()
    assert (good[0].sequence, broken, Entry.objects.count()) == (1, [], 2)


def test_two_noted_heads_that_differ_break_the_chain() -> None:
    note()
    [right], _ = verify()
    assert verify([right, right])[1] == []
    _, [broken] = verify([Head("", 1, "0" * 64), right])
    assert "noted elsewhere" in str(broken)


def test_no_exported_text_ends_a_line_or_starts_a_formula() -> None:
    for reason in ("one \u2028 two \x85 three \u2029 four", "\n=1+1", "\uff1d1+1"):
        note(reason)
    lines = "".join(export(Entry.objects.all(), "jsonl")).splitlines()
    assert [json.loads(line)["reason"][:6] for line in lines] == ["one \u2028 ", "\n=1+1", "\uff1d1+1"]
    rows = list(csv.DictReader(io.StringIO("".join(export(Entry.objects.all(), "csv")), newline="")))
    assert [row["reason"][0] for row in rows[1:]] == ["'", "'"]


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_the_check_reads_parts_and_nothing_hides_between_them(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """One statement of a large audit would meet the time limit of its session."""
    monkeypatch.setattr(chain, "_AT_ONCE", at_once)
    for _ in range(5):
        note()
    with CaptureQueriesContext(connection) as seen:
        good, broken = verify()
    assert (good[0].sequence, broken) == (5, [])
    reads = [one["sql"] for one in seen if 'FROM "audit_entry"' in one["sql"]]
    assert len(reads) >= 5 // at_once
    parts = re.compile(r'LIMIT|MIN\(|"sequence" < ')
    assert not [sql for sql in reads if not parts.search(sql)]
    with attacked() as cursor:
        # A copy that has the number of each entry in turn, in front of the real one and behind it.
        for number in range(1, 6):
            for order in ("min(id) - 1", "max(id) + 1"):
                cursor.execute(COPY.format(order=order), [number])
                [(copy,)] = cursor.fetchall()
                _, [found] = verify()
                assert found.sequence in (number, number + 1), found
                cursor.execute("DELETE FROM audit_entry WHERE id = %s", [copy])
        for number in (-7, 0, 500):
            cursor.execute("UPDATE audit_entry SET sequence = %s WHERE sequence = 3", [number])
            _, [found] = verify()
            assert (found.sequence, found.why) == (min(number, 3) if number > 0 else 1, "is missing")
            cursor.execute("UPDATE audit_entry SET sequence = 3 WHERE sequence = %s", [number])
        cursor.execute("UPDATE audit_entry SET sequence = NULL WHERE sequence = 5")
        _, [found] = verify()
        assert (found.sequence, found.why) == (5, "was written without the chain")
    assert verify()[1] == [found]


#: Postgres of an attacker who may remove what guards the audit.
COPY = """
    INSERT INTO audit_entry SELECT (jsonb_populate_record(one, jsonb_build_object('id', other.id))).*
    FROM audit_entry one, (SELECT {order} AS id FROM audit_entry) other WHERE one.sequence = %s
    RETURNING id
"""


@contextmanager
def attacked() -> Iterator[CursorWrapper]:
    """Without triggers and the constraint of numbers, which come back."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_entry DISABLE TRIGGER USER")
        cursor.execute("ALTER TABLE audit_entry DROP CONSTRAINT entry_chained_once")
        try:
            yield cursor
        finally:
            cursor.execute(
                "ALTER TABLE audit_entry ADD CONSTRAINT entry_chained_once UNIQUE (environment, sequence)"
            )
            cursor.execute("ALTER TABLE audit_entry ENABLE TRIGGER USER")
