"""Exports the audit as CSV for spreadsheets or JSON lines for programs. Streams, so any length works."""

import csv
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from io import StringIO
from itertools import chain
from typing import Any, Literal

from asgiref.sync import sync_to_async
from django.db.models import QuerySet

from controlplane.audit.models import Entry

Format = Literal["csv", "jsonl"]
CONTENT_TYPES: dict[Format, str] = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}

_FIELDS = (
    "id",
    "at",
    "actor",
    "role",
    "origin",
    "address",
    "action",
    "target_kind",
    "target_name",
    "before",
    "after",
    "reason",
    "environment",
    "epoch",
    "revision",
    "sequence",
    "hash",
    "token",
    "owner",
    "request_id",
    "trace_id",
)
#: Rows per query. Each chunk is a separate query, so no connection is in use between two chunks.
_CHUNK = 1000
#: Characters that begin a formula in a spreadsheet. Some accept full-width signs, too.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
#: Some readers treat these as the end of a line and would read half an entry.
_LINES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "\x85\u2028\u2029"}


def export(rows: QuerySet[Entry], kind: Format) -> Iterator[str]:
    """Yield the entries as text, oldest first."""
    write = _writer(kind)
    yield from _heading(kind)
    for entries in _chunks(rows):
        yield write(entries)


async def aexport(rows: QuerySet[Entry], kind: Format) -> AsyncIterator[str]:
    """Do the same as ``export``, for a response that is sent while rows are read."""
    pieces = export(rows, kind)
    while piece := await sync_to_async(lambda: next(pieces, ""))():
        yield piece


def _chunks(rows: QuerySet[Entry]) -> Iterator[list[Entry]]:
    last = 0
    while entries := list(rows.filter(pk__gt=last).order_by("pk")[:_CHUNK]):
        yield entries
        last = entries[-1].pk


def _heading(kind: Format) -> Iterable[str]:
    return [",".join(_FIELDS) + "\r\n"] if kind == "csv" else []


def _writer(kind: Format) -> Callable[[list[Entry]], str]:
    return _as_csv if kind == "csv" else as_json_lines


def as_json_lines(entries: Iterable[Entry]) -> str:
    texts = (json.dumps(values(entry), ensure_ascii=False).translate(_LINES) for entry in entries)
    lines = ([text, "\n"] for text in texts)
    return "".join(chain.from_iterable(lines))


def _as_csv(entries: list[Entry]) -> str:
    text = StringIO()
    writer = csv.writer(text)
    for entry in entries:
        writer.writerow([harmless_cell(value) for value in values(entry).values()])
    return text.getvalue()


def values(entry: Entry) -> dict[str, Any]:
    values = {name: getattr(entry, name) for name in _FIELDS}
    return values | {"at": entry.at.isoformat()}


def harmless_cell(value: Any) -> Any:
    """Return a value that no spreadsheet executes. An apostrophe is their own mark for text."""
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not isinstance(value, str):
        return "" if value is None else value
    value = value.replace("\x00", "")
    return f"'{value}" if value.startswith(_FORMULA) else value
