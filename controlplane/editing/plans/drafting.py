"""Uploaded plans: a worker reads, compares and applies them. Small ones are processed at once."""

import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import IO
from uuid import UUID

import structlog
from django.db import connections
from django.utils import timezone

from controlplane.accounts.authors import RightsLost, lost_rights
from controlplane.accounts.permissions import may
from controlplane.approvals.proposals import Proposed
from controlplane.audit.actor import Actor
from controlplane.editing.plans.apply import apply_plan
from controlplane.editing.plans.difference import Difference, difference
from controlplane.editing.plans.plan import MAX_BYTES, PlanErrors
from controlplane.editing.plans.reading import read_plan
from controlplane.errors import EditConflict, EditError, InvalidEdit
from controlplane.policies.drafts import Draft, DraftState
from controlplane.policies.fields import Fields
from controlplane.policies.history import as_document
from controlplane.postgres import session_lock
from controlplane.validation import check_reason

log = structlog.get_logger(__name__)

#: Files up to this size are processed while the user waits.
AT_ONCE_BYTES = 128 * 1024
#: How many changes a draft keeps whole, for its page: the button that applies them is below.
FIRST = 20
#: Drafts are deleted after this time.
KEPT = timedelta(days=7)


class _Report:
    """Progress that other processes see during the transaction: a separate connection writes it."""

    def __init__(self, pk: UUID) -> None:
        self._pk = pk
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="progress")

    def __call__(self, step: str, done: int, of: int) -> None:
        self._thread.submit(self._write, step, done, of)

    def settle(self) -> None:
        """Wait until all of it is written. Two connections must not update one row at the same time."""
        self._thread.submit(bool).result()

    def close(self) -> None:
        self._thread.submit(connections.close_all).result()
        self._thread.shutdown()

    def _write(self, step: str, done: int, of: int) -> None:
        Draft.objects.filter(pk=self._pk).update(step=step[:64], done=done, of=of)


def _stored(actor: Actor) -> dict[str, str]:
    """Without empty fields, which an earlier version may not know."""
    return {name: value for name, value in asdict(actor).items() if value or name in ("name", "role")}


def upload(*, environment: str, filename: str, stream: IO[bytes], prune: bool, actor: Actor) -> Draft:
    """Store a file, and read and compare it at once if it is small. Raises ``InvalidEdit``."""
    content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidEdit({"file": [f"At most {MAX_BYTES // 1024 // 1024} MiB."]})
    if not content.strip():
        raise InvalidEdit({"file": ["The file is empty."]})
    draft = Draft.objects.create(
        environment=environment,
        filename="".join(letter for letter in filename if letter.isprintable())[:200] or "a file",
        content=zlib.compress(content),
        prune=prune,
        actor=_stored(actor),
    )
    return _soon(draft, len(content))


def order(*, draft: UUID, reason: str, actor: Actor) -> Draft:
    """Apply a draft that was read, at once if it is small. Raises ``InvalidEdit``."""
    check_reason(reason)
    ordered = Draft.objects.filter(pk=draft, state=DraftState.READ).update(
        state=DraftState.ORDERED, reason=reason, actor=_stored(actor)
    )
    if not ordered:
        raise InvalidEdit(
            {"draft": ["This file was applied already, or is still being read. Reload the page."]}
        )
    row = Draft.objects.get(pk=draft)
    return _soon(row, len(zlib.decompress(row.content)))


def work_drafts() -> int:
    """Read and apply the waiting drafts. Return how many were processed."""
    done = 0
    waiting = Draft.objects.filter(state__in=("waiting", "reading", "ordered", "applying"))
    for pk in list(waiting.order_by("created_at").values_list("pk", flat=True)):
        done += work(pk)
    Draft.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return done


def work(pk: UUID) -> bool:
    """Read or apply one draft. Return ``False`` when another process does."""
    with session_lock(pk.int & 0x7FFF_FFFF_FFFF_FFFF) as alone:
        draft = Draft.objects.filter(pk=pk).first() if alone else None
        if draft is None or not draft.busy:
            return False
        with closing(_Report(pk)) as report:
            try:
                if draft.state in (DraftState.WAITING, DraftState.READING):
                    _read(draft, report)
                else:
                    _apply(draft, report)
            except PlanErrors as errors:
                _refuse(draft, report, [list(error) for error in errors.found])
            except EditConflict as conflict:
                _read(draft, report)
                said = (
                    f"{conflict.by or 'Another user'} changed the configuration meanwhile: review it again."
                )
                Draft.objects.filter(pk=pk).update(errors=[[0, "", said]])
            except Proposed as proposed:
                report.settle()
                waits = (draft.difference or {}) | {"request": proposed.request.pk}
                _set(draft, state=DraftState.APPLIED, step="", difference=waits)
            except EditError as error:
                _refuse(draft, report, [[0, "", str(error)]])
    return True


def _read(draft: Draft, report: _Report) -> None:
    _set(draft, state=DraftState.READING, step="Reading", errors=[])
    plan = read_plan(zlib.decompress(draft.content))
    report(f"Comparing {len(plan):,} rows", 0, 0)
    found = difference(draft.environment, plan, prune=draft.prune)
    report.settle()
    _set(
        draft,
        state=DraftState.READ,
        step="",
        difference=found.to_document()
        | {
            "by_kind": found.by_kind,
            "rows": len(plan),
            **_first(found),
        },
        compared_with=found.revision,
    )


def _first(found: Difference) -> dict[str, list[Fields]]:
    """The first changes whole, and those of the tiers that their tenants have afterwards."""
    first, rest = found.changes[:FIRST], found.changes[FIRST:]
    needed = {change.after["tier"] for change in first if change.kind == "tenant" and change.after}
    tiers = [change for change in rest if change.kind == "tier" and change.name in needed]
    return {"first": [as_document(one) for one in first], "tiers": [as_document(one) for one in tiers]}


def _apply(draft: Draft, report: _Report) -> None:
    _set(draft, state=DraftState.APPLYING, step="Reading again")
    actor = Actor(**draft.actor)
    plan = read_plan(zlib.decompress(draft.content))
    report("Comparing again", 0, 0)

    def applied(revision: int) -> None:
        # In the transaction of the revision, so that a draft is applied exactly when its revision is.
        report.settle()
        # A worker can apply it long after the order, and a large file takes minutes.
        _check_author(draft.environment, actor)
        Draft.objects.filter(pk=draft.pk).update(state=DraftState.APPLIED, step="", revision=revision)

    revision = apply_plan(
        environment=draft.environment,
        plan=plan,
        expected_revision=draft.compared_with,
        reason=draft.reason,
        actor=actor,
        prune=draft.prune,
        progress=report,
        inside=applied,
    )
    log.info("plan.applied", environment=draft.environment, revision=revision, file=draft.filename)


def _check_author(environment: str, actor: Actor) -> None:
    """Raise ``RightsLost`` when the person who ordered it may not edit the configuration any more."""
    lost = lost_rights(
        actor,
        lambda user: may(user, "edit_quota", environment),
        did="applied the file",
        needs="the role admin",
    )
    if lost:
        raise RightsLost(f"{lost} Nothing was changed. Another admin has to upload and apply it again.")


def _soon(draft: Draft, size: int) -> Draft:
    if size <= AT_ONCE_BYTES:
        work(draft.pk)
        draft.refresh_from_db()
    return draft


def _refuse(draft: Draft, report: _Report, errors: list[list[object]]) -> None:
    report.settle()
    _set(draft, state=DraftState.REFUSED, step="", errors=errors)


def _set(draft: Draft, **values: object) -> None:
    Draft.objects.filter(pk=draft.pk).update(done=0, of=0, **values)
