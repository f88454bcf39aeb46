"""Attacks on the check of the audit, and on readers of its export."""

import csv
import io
import json
import threading
from typing import Any

import pytest
from django.db import connections, transaction

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
