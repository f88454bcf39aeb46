"""``plan``, ``apply``, ``export``, ``revisions``, ``rollback``, ``revert``: the configuration as a file."""

import argparse
import sys
from pathlib import Path

from msgspec import Struct

from fuseboard.cli.ctl.client import Client
from fuseboard.cli.ctl.documents import NewRevision, Page, RevertMade
from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.cli.ctl.output import clean, confirmed, say, say_json, say_result, say_revision


class Planned(Struct, frozen=True):
    """The changes that applying the file would make, and the revision it was compared with."""

    revision: int
    changes: int
    text: str
    created: int = 0
    changed: int = 0
    removed: int = 0


class Replayed(Struct, frozen=True):
    """The last days without and with the file."""

    days: int
    coverage_percent: float
    asked: int
    refused_before: int
    refused_after: int
    peak_before: float
    peak_after: float
    unmeasured: int


class RevisionRow(Struct, frozen=True):
    number: int
    at: str
    actor: str
    action: str
    target: str
    reason: str


def plan(client: Client, given: argparse.Namespace) -> Exit:
    """Print the difference. Changes nothing."""
    planned = show_plan(client, given, *_file(given.file))
    return Exit.CHANGES if planned.changes and given.detailed_exit_code else Exit.DONE


def show_plan(client: Client, given: argparse.Namespace, content: bytes, kind: str) -> Planned:
    """Print what a file of this content and kind would change. Changes nothing."""
    planned = client.upload("plan", Planned, content, kind, prune=_prune(given))
    if given.json:
        say_json(planned)
    else:
        _show(planned)
    return planned


def what_if(client: Client, given: argparse.Namespace) -> None:
    """Replay the last days with the file. Changes nothing."""
    found = client.upload("what-if", Replayed, *_file(given.file), days=given.days)
    if given.json:
        say_json(found)
        return
    if not found.asked:
        say(f"There are no measurements of the last {found.days} days for what it changes.")
        return
    say(f"last {found.days} days, {found.coverage_percent:.0f} % of them measured; {found.asked:,} requests")
    say(f"refused       {found.refused_before:,} -> {found.refused_after:,}")
    say(f"busiest minute {found.peak_before:,.0f}/s -> {found.peak_after:,.0f}/s let through")
    if found.unmeasured:
        say(f"{found.unmeasured:,} tenants it changes have no recorded requests")


def apply(client: Client, given: argparse.Namespace) -> None:
    """Apply a file, or nothing."""
    apply_content(client, given, *_file(given.file))


def apply_content(client: Client, given: argparse.Namespace, content: bytes, kind: str) -> None:
    """Apply exactly what was shown, or nothing: an edit in between is a conflict."""
    planned = client.upload("plan", Planned, content, kind, prune=_prune(given))
    if not given.json:
        _show(planned)
    if not planned.changes:
        if given.json:
            say_json(NewRevision(revision=planned.revision))
        return
    if not given.yes and sys.stdin.isatty() and not confirmed("Apply this? Type yes"):
        raise Failed(Exit.REFUSED, "not applied")
    made = client.upload(
        "apply",
        NewRevision,
        content,
        kind,
        reason=given.reason,
        expected_revision=planned.revision,
        prune=_prune(given),
    )
    say_result(given, made, f"Applied as revision {made.revision}.")


def export(client: Client, given: argparse.Namespace) -> None:
    query = {"format": "nginx", "header": given.header, "gateways": given.gateways} if given.nginx else {}
    text = client.raw("GET", "export", query=query)
    if given.json:
        # The file is not JSON. With --json, it is printed as a JSON string.
        say_json({"text": text.decode()})
    else:
        sys.stdout.buffer.write(text)


def revisions(client: Client, given: argparse.Namespace) -> None:
    page = client.get("revisions", Page[RevisionRow], limit=given.limit)
    if given.json:
        say_json(page.items)
        return
    for row in page.items:
        say(clean(f"{row.number:>6}  {row.at[:19]}  {row.actor}  {row.action} {row.target}: {row.reason}"))


def rollback(client: Client, given: argparse.Namespace) -> None:
    now = client.get("configuration", NewRevision)
    body = {"to_revision": given.to, "expected_revision": now.revision, "reason": given.reason}
    made = client.write("POST", "rollback", NewRevision, body)
    say_revision(given, made, f"The configuration is as it was at revision {given.to}")


def revert(client: Client, given: argparse.Namespace) -> None:
    now = client.get("configuration", NewRevision)
    body = {
        "things": [{"kind": "tenant", "name": given.tenant}] if given.tenant else None,
        "on_conflict": "overwrite" if given.overwrite else "keep",
        "expected_revision": now.revision,
        "reason": given.reason,
    }
    path = f"revisions/{given.number}/revert{'/preview' if given.dry_run else ''}"
    made = client.write("POST", path, RevertMade, body)
    if given.json:
        say_json(made)
        return
    for unit in made.reverted:
        for name, (present, earlier) in unit.fields.items():
            say(clean(f"{unit.kind} {unit.name}: {name} {present} -> {earlier}"))
    for unit in made.kept:
        why = f"revision {unit.revision} of {unit.by}" if unit.revision else "its time is over"
        if unit.template:
            why = f"it follows template {unit.template}"
        say(clean(f"{unit.kind} {unit.name}: kept {unit.unit or unit.kind}: {why}"))
    if given.dry_run:
        say("Nothing was changed.")
    elif made.revision == now.revision:
        say("Nothing to do.")
    else:
        say(f"Revision {given.number} is reverted, as revision {made.revision}.")


def _show(planned: Planned) -> None:
    if planned.changes:
        # The lines are Fuseboard's, but the text in them is other people's.
        for line in planned.text.splitlines():
            say(clean(line))
    else:
        say(f"Nothing would change: revision {planned.revision} matches the file.")


def _prune(given: argparse.Namespace) -> str | None:
    return "true" if given.prune else None


def _file(name: str) -> tuple[bytes, str]:
    """Its content, and what it is."""
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise Failed(Exit.USAGE, f"{name} cannot be read: {error.strerror or error}") from None
    return content, "text/csv" if name.lower().endswith(".csv") else "application/yaml"
