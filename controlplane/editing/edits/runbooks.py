"""Texts of runbooks. Pods do not need them, so an edit makes a revision of the runbook alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from controlplane.audit.actor import Actor
from controlplane.audit.record import Fields, acting, record
from controlplane.errors import EditConflict, InvalidEdit, NotFound, find
from controlplane.policies.models import Dependency, Runbook, RunbookRevision
from controlplane.policies.runbook_texts import known_runbook, runbook_row, source_of
from controlplane.runbooks.format import read_runbook
from controlplane.runbooks.shipped import Text, shipped, split_title
from controlplane.validation import Problems, check_reason

LONGEST_BODY = 100_000
#: Runbooks of the release count if they were edited, or if a dependency uses them.
MAX_RUNBOOKS = 500
#: Revisions of one runbook that are kept.
KEPT_REVISIONS = 100
#: The address of the form for a new one.
_TAKEN = ("new",)
_RELEASE = "The built-in text"


def save_runbook(
    *,
    runbook: str,
    title: str,
    body: str,
    reason: str,
    actor: Actor,
    expected_version: int | None = None,
) -> int:
    """Create or replace a runbook; returns its version, which stays when the text is the present one.

    ``expected_version`` is 0 for one that was never edited, and ``None`` replaces any. Raises
    ``InvalidEdit``, ``EditConflict``, ``NotFound``.
    """
    text = checked_text(runbook, title, body, reason)
    with _editing(runbook, expected_version, actor, new=text) as (row, before):
        if before == text:
            return row.version
        if before is None and Runbook.objects.count() > MAX_RUNBOOKS:
            raise InvalidEdit({"runbook": [f"There are {MAX_RUNBOOKS} runbooks. Remove one first."]})
        action = "runbook.created" if before is None else "runbook.replaced"
        _write(row, before, text, action=action, reason=reason, actor=actor)
    return row.version


def restore_runbook(*, runbook: str, number: int, expected_version: int, reason: str, actor: Actor) -> int:
    """Save the text of an earlier revision again; returns the new version.

    Raises ``InvalidEdit`` also if the text contains what runbooks may not contain any more.
    """
    old = find(RunbookRevision.objects.filter(runbook=runbook), "revision of this runbook", number=number)
    text = checked_text(runbook, old.title, old.body, reason)
    with _editing(runbook, expected_version, actor) as (row, before):
        if before == text:
            raise InvalidEdit({"number": ["The runbook has this text already."]})
        _write(row, before, text, action="runbook.restored", reason=reason, actor=actor)
    return row.version


def use_shipped_runbook(*, runbook: str, expected_version: int, reason: str, actor: Actor) -> int:
    """Apply the text of the release again, also that of later releases; returns the new version."""
    check_reason(reason)
    default = _default(runbook)
    with _editing(runbook, expected_version, actor) as (row, before):
        if row.source:
            raise InvalidEdit({"runbook": ["The runbook has its built-in text already."]})
        _write(row, before, default, action="runbook.restored", reason=reason, actor=actor)
    return row.version


def keep_edited_runbook(*, runbook: str, expected_version: int, reason: str, actor: Actor) -> None:
    """Note that a person has compared the text with the one of this release, and keeps it."""
    check_reason(reason)
    default = _default(runbook)
    with _editing(runbook, expected_version, actor) as (row, before):
        row.default_title, row.default_body = default.title, default.body
        row.save(update_fields=["default_title", "default_body"])
        about = _about(row.version, before)
        _record(row, "runbook.kept", before=about, after=about, reason=reason, actor=actor)


def remove_runbook(*, runbook: str, expected_version: int, reason: str, actor: Actor) -> None:
    """Remove a runbook that no release has, with its revisions. The audit keeps its last text."""
    check_reason(reason)
    if runbook in shipped():
        raise InvalidEdit({"runbook": ["A built-in runbook stays. Use its built-in text instead."]})
    with _editing(runbook, expected_version, actor) as (row, _):
        users = Dependency.objects.filter(runbook=row).order_by("environment_id", "name")[:5]
        names = ", ".join(f"{one.name} in {one.environment_id}" for one in users)
        if names:
            raise InvalidEdit({"runbook": [f"Choose another runbook for {names} first."]})
        lost = {"title": row.title, "body": row.body}
        _record(row, "runbook.removed", before=lost, after=None, reason=reason, actor=actor)
        row.delete()


def checked_text(runbook: str, title: str, body: str, reason: str) -> Text:
    """The text as it is stored. Raises ``InvalidEdit`` with everything that a person has to correct."""
    text, errors = normal_text(title, body), Problems()
    errors.slug("runbook", runbook)
    if runbook in _TAKEN:
        errors.add("runbook", "Choose another name: the application uses this one.")
    errors.text("title", text.title, 200)
    if not text.title:
        errors.add("title", "Enter a title.")
    errors.text("body", text.body, LONGEST_BODY, lines=True)
    if "body" not in errors.errors:
        for problem in read_runbook(text.body).to_correct:
            errors.add("body", problem)
    errors.reason(reason)
    errors.settle()
    return text


def normal_text(title: str, body: str) -> Text:
    """Without a title that is repeated in the body, and with the line ends of the files of a release."""
    title, inner = title.strip(), split_title(body.replace("\r\n", "\n").replace("\r", "\n"))
    whole = inner.body if inner.title == title else f"# {inner.title}\n\n{inner.body}"
    return Text(title, whole if inner.title else inner.body)


@contextmanager
def _editing(
    runbook: str, expected_version: int | None, actor: Actor, *, new: Text | None = None
) -> Iterator[tuple[Runbook, Text | None]]:
    """A transaction with the locked row and its present text; ``None`` for one that is created."""
    with transaction.atomic():
        acting(actor)
        created = False
        if runbook_row(runbook) is None:
            if new is None or expected_version:
                raise NotFound("runbook", runbook)
            values = {"title": new.title, "body": new.body}
            _, created = Runbook.objects.get_or_create(slug=runbook, defaults=values)
        row = Runbook.objects.select_for_update().filter(pk=runbook).first()
        known = known_runbook(runbook)
        if row is None or known is None:
            raise NotFound("runbook", runbook)
        if expected_version is not None and expected_version != row.version:
            raise _conflict(row, known.text, expected_version)
        yield row, None if created else known.text


def _conflict(row: Runbook, text: Text, expected: int) -> EditConflict:
    rows = RunbookRevision.objects.filter(runbook=row)
    last, read = rows.order_by("-number").first(), rows.filter(number=expected).first()
    changed = {
        name: getattr(text, name)
        for name in ("title", "body")
        if read is None or getattr(read, name) != getattr(text, name)
    }
    return EditConflict(
        expected_version=expected,
        current_version=row.version,
        changed=changed,
        by=last.by if last is not None else "",
        at=last.at if last is not None else None,
    )


def _write(row: Runbook, before: Text | None, text: Text, *, action: str, reason: str, actor: Actor) -> None:
    default = shipped().get(row.pk)
    if before is not None and not row.revisions.exists():
        _add(row, before, number=row.version, shipped=bool(row.source), reason=_RELEASE if row.source else "")
    earlier = row.version
    row.title, row.body, row.version = text.title, text.body, row.version + 1
    row.source = source_of(row.pk) if text == default else ""
    row.default_title, row.default_body = (default.title, default.body) if default is not None else ("", "")
    row.save()
    _add(row, text, number=row.version, shipped=bool(row.source), reason=reason, by=actor.name[:200])
    RunbookRevision.objects.filter(runbook=row, number__lte=row.version - KEPT_REVISIONS).delete()
    _record(
        row,
        action,
        before=_about(earlier, before) if before is not None else None,
        after=_about(row.version, text),
        reason=reason,
        actor=actor,
    )


def _add(row: Runbook, text: Text, **fields: Any) -> None:
    RunbookRevision.objects.create(runbook=row, title=text.title, body=text.body, at=Now(), **fields)


def _about(version: int, text: Text | None) -> Fields:
    """Return what the audit stores about a text. The revisions have the text itself."""
    found = text or Text("", "")
    return {"version": version, "title": found.title, "characters": len(found.body)}


def _default(runbook: str) -> Text:
    text = shipped().get(runbook)
    if text is None:
        raise InvalidEdit({"runbook": ["This release has no runbook of this name."]})
    return text


def _record(
    row: Runbook, action: str, *, before: Fields | None, after: Fields | None, reason: str, actor: Actor
) -> None:
    record(
        actor=actor,
        action=action,
        target_kind="runbook",
        target_name=row.pk,
        before=before,
        after=after,
        reason=reason,
    )
