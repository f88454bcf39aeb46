"""``change-requests``, ``approve``, ``reject`` and similar: edits that wait for a second person."""

import argparse
import sys
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from fuseboard.cli.ctl.client import Client
from fuseboard.cli.ctl.documents import Page
from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.cli.ctl.output import clean, confirmed, moment, say, say_json, say_result, table

#: How many changes are listed. The dashboard shows all of them.
_MAX_CHANGES = 50


class Row(Struct, frozen=True):
    id: int
    state: str
    version: int
    base: int
    action: str
    target: str
    reason: str
    author: str
    changed: int
    needed: int
    approvals: int
    created_at: datetime
    due_at: datetime | None = None
    revision: int | None = None
    schedule: int | None = None


class Change(Struct, frozen=True):
    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class Detail(Row, frozen=True, kw_only=True):
    conflict: bool
    changes: tuple[Change, ...]


def waits(given: argparse.Namespace, content: bytes) -> Exit:
    """Report that an edit became a change request."""
    row = msgspec.json.decode(content, type=Row)
    missing = row.needed - row.approvals
    text = f"Proposed as request {row.id}: it needs {missing} approval{'s' * (missing != 1)}."
    say_result(given, row, text)
    return Exit.WAITS


def listing(client: Client, given: argparse.Namespace) -> None:
    if given.number is not None:
        found = _read(client, given.number)
        if given.json:
            say_json(found)
        else:
            _show(found)
        return
    page = client.get("requests", Page[Row], state=given.state, limit=given.limit)
    if given.json:
        say_json(page.items)
        return
    rows = [
        (
            str(row.id),
            row.state,
            f"{row.approvals} of {row.needed}",
            moment(row.created_at),
            row.author,
            f"{row.action} {row.target}".strip(),
            row.reason,
        )
        for row in page.items
    ]
    table(rows, heads=("request", "state", "approvals", "asked", "by", "what", "why"))


def approve(client: Client, given: argparse.Namespace) -> None:
    """Approve exactly what was shown: a request that was rebased in between is a conflict."""
    found = _read(client, given.number)
    if not given.json:
        _show(found)
    if not given.yes and sys.stdin.isatty() and not confirmed("Approve this? Type yes"):
        raise Failed(Exit.REFUSED, "not approved")
    body = {"expected_version": found.version, "note": given.note}
    _ended(given, client.write("POST", f"requests/{given.number}/approve", Row, body))


def reject(client: Client, given: argparse.Namespace) -> None:
    _ended(given, client.write("POST", f"requests/{given.number}/reject", Row, {"reason": given.reason}))


def withdraw(client: Client, given: argparse.Namespace) -> None:
    _ended(given, client.write("POST", f"requests/{given.number}/withdraw", Row, {"reason": given.reason}))


def rebase(client: Client, given: argparse.Namespace) -> None:
    _ended(given, client.write("POST", f"requests/{given.number}/rebase", Row))


def make(client: Client, given: argparse.Namespace) -> None:
    _ended(given, client.write("POST", f"requests/{given.number}/apply", Row))


def _read(client: Client, number: int) -> Detail:
    return client.get(f"requests/{number}", Detail)


def _ended(given: argparse.Namespace, row: Row) -> None:
    became = f", as revision {row.revision}" if row.revision is not None else ""
    became = f", as schedule {row.schedule}" if row.schedule is not None else became
    counted = f", {row.approvals} of {row.needed} approvals" if row.state in ("open", "approved") else ""
    say_result(given, row, f"Request {row.id} is {row.state}{became}{counted}.")


def _show(found: Detail) -> None:
    state = f"{found.state}, in conflict: rebase it" if found.conflict else found.state
    say(f"request {found.id}  {state}  {found.approvals} of {found.needed} approvals")
    say(clean(f"{found.action} {found.target} by {found.author}: {found.reason}"))
    if found.due_at is not None:
        say(f"to be applied at {moment(found.due_at)}")
    for change in found.changes[:_MAX_CHANGES]:
        sign = "+" if change.before is None else "-" if change.after is None else "~"
        say(clean(f"{sign} {change.kind} {change.name}"))
        before, after = change.before or {}, change.after or {}
        for field in sorted(before.keys() | after.keys()) if change.after is not None else ():
            if before.get(field) != after.get(field):
                say(clean(f"    {field}: {_word(before, field)} -> {_word(after, field)}"))
    if found.changed > _MAX_CHANGES:
        say(f"... and {found.changed - _MAX_CHANGES:,} more")


def _word(fields: dict[str, Any], field: str) -> str:
    return msgspec.json.encode(fields[field]).decode() if field in fields else "nothing"
