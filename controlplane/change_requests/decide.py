"""Decisions about a change request: approve, reject, withdraw, apply.

Each locks the request's row first, then the environment's. Two at once run one after the other,
and the second sees the result of the first.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from django.contrib.auth import get_user_model
from django.db import DataError, IntegrityError, connection, transaction
from django.utils import timezone

from controlplane.accounts import given_access
from controlplane.accounts.people import person_of
from controlplane.accounts.permissions import may
from controlplane.approvals import proposals
from controlplane.approvals.authors import author_of, check_author
from controlplane.approvals.models import PENDING, Approval, ChangeRequest, RequestState
from controlplane.approvals.rules import put_needed, recount
from controlplane.audit.actor import FUSEBOARD, Actor
from controlplane.audit.record import acting
from controlplane.change_requests.conflicts import check_base
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import EditConflict, EditError, InvalidEdit, find
from controlplane.metric_catalogue import edits as catalogue
from controlplane.phrases import count
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.history import ROWS_PER_STATEMENT, Changed
from controlplane.policies.models import VERSIONED
from controlplane.schedules.edits import keep_schedule
from controlplane.schedules.models import Needs
from controlplane.spending.budget_fields import is_over
from controlplane.spending.model_checks import BEGUN, rewritten
from controlplane.validation import Problems, check_reason

log = structlog.get_logger(__name__)

ended = catalogue.CHANGE_REQUESTS_ENDED.make()
refused = catalogue.APPROVALS_REFUSED.make()


class NotYours(EditError):
    """This person or program may not do that with this request."""


def approve(
    *, environment: str, request: int, expected_version: int, actor: Actor, note: str = ""
) -> ChangeRequest:
    """Approve a request as it was displayed. Raises ``NotYours`` for the people who made or changed it."""
    problems = Problems()
    problems.text("note", note, 500, lines=True)
    problems.settle()
    with pending(environment, request, actor) as row:
        _check_version(row, expected_version)
        person = _approver(row, actor)
        already = row.approvals.filter(version=row.version).values_list("person", flat=True)
        if _is_one_of(person, list(already)):
            raise InvalidEdit({"request": ["You have already approved it."]})
        _check_independent(row, person, list(already))
        check_author(row)
        check_base(row)
        Approval.objects.create(
            request=row, version=row.version, person=person, actor=actor.name[:200], note=note
        )
        agreed = proposals.count(row).agreed
        proposals.note(row, "change_request.approved", actor, note or "Approved.", approvals=agreed)
    log.info("change_request.approved", environment=environment, request=request, by=actor.name)
    return row


def reject(*, environment: str, request: int, reason: str, actor: Actor) -> ChangeRequest:
    """Reject another person's request, with a reason. Authors withdraw their own requests."""
    check_reason(reason)
    with pending(environment, request, actor) as row:
        _approver(row, actor)
        _end(row, RequestState.REJECTED, actor, reason)
    return row


def withdraw(*, environment: str, request: int, reason: str, actor: Actor) -> ChangeRequest:
    """Withdraw your own request."""
    check_reason(reason)
    with pending(environment, request, actor) as row:
        if row.persons and person_of(actor) not in row.persons:
            raise NotYours("Only its author can withdraw it. Reject it, with a reason.")
        _end(row, RequestState.WITHDRAWN, actor, reason)
    return row


def withdraw_for_another(*, environment: str, request: int, reason: str, actor: Actor) -> ChangeRequest:
    """Withdraw the request of a person who is deactivated or loses a role. An admin decides it."""
    check_reason(reason)
    with pending(environment, request, actor) as row:
        _end(row, RequestState.WITHDRAWN, actor, reason)
    return row


def apply(*, environment: str, request: int, actor: Actor) -> ChangeRequest:
    """Turn an approved request into the revision, or the schedule, that it asks for.

    Raises ``EditConflict`` when its targets changed after it was made, and ``InvalidEdit`` when
    approvals are missing or it is no longer valid.
    """
    try:
        with pending(environment, request, actor) as row:
            standing = proposals.count(row)
            if row.state != RequestState.APPROVED:
                text = f"It needs {count(standing.missing, 'more approval')}. {standing.why_fewer}"
                raise InvalidEdit({"request": [text.rstrip()]})
            check_author(row)
            _make(row, actor)
            row.state, row.ended_at, row.ended_by = RequestState.APPLIED, timezone.now(), actor.name[:200]
            row.save()
            proposals.note(
                row,
                "change_request.applied",
                actor,
                row.reason,
                approved_by=", ".join(row.approved_by),
                applied_by=actor.name,
            )
    except (IntegrityError, DataError) as error:
        said = str(error).partition("\n")[0]
        raise InvalidEdit({"request": [f"It no longer fits the current configuration: {said}"]}) from error
    if row.lowers_to is not None:
        recount(environment)
    ended.labels(RequestState.APPLIED).inc()
    log.info("change_request.applied", environment=environment, request=request, revision=row.revision)
    return row


def expire_requests() -> int:
    """Expire requests that were pending for too long; return how many."""
    due = ChangeRequest.objects.filter(state__in=PENDING, expires_at__lte=timezone.now())
    done = 0
    for environment, pk in list(due.order_by("pk").values_list("environment", "pk")[:500]):
        with pending(environment, pk, FUSEBOARD, strict=False) as row:
            if row.pending and row.expires_at <= timezone.now():
                _end(row, RequestState.EXPIRED, FUSEBOARD, "It was not applied in time.")
                done += 1
    return done


def _make(row: ChangeRequest, actor: Actor) -> None:
    author = author_of(row)
    if row.lowers_to is not None:
        put_needed(environment=row.environment, needed=row.lowers_to, reason=row.reason, actor=author)
    elif row.due_at is not None:
        check_base(row)
        row.schedule = keep_schedule(
            environment=row.environment,
            due_at=row.due_at,
            document=row.document or {},
            title=row.title,
            reason=row.reason,
            actor=author,
            needs=Needs(row.needs),
            base=row.base,
        ).pk
    else:
        changes = proposals.changes_of(row)
        with revise(
            environment=row.environment,
            actor=author,
            reason=row.reason,
            restores=row.restores,
            reverts=row.reverts,
            approved_request=row.pk,
        ) as revision:
            check_base(row, making=revision.number)
            check_prices(row, changes)
            check_raises(changes)
            _write_audit_lines(row, changes, revision)
            write_changes(revision, changes)
            row.revision = revision.number
    acting(actor)


def check_prices(row: ChangeRequest, changes: Sequence[Changed]) -> None:
    """Raise ``InvalidEdit`` if a price has begun since the request that changes it was made.

    Only a revert, a rollback and an import with *prune* replace such a price.
    """
    if row.whole or row.reverts is not None or row.restores is not None:
        return
    now = timezone.now()
    for change in changes:
        if change.kind == "model" and change.before and change.after:
            before, after = (limits_in("prices", fields) for fields in (change.before, change.after))
            if any(rewritten(before, after, now)):
                raise InvalidEdit({"request": [f"{change.name}: {BEGUN}"]})


def check_raises(changes: Sequence[Changed]) -> None:
    """Raise ``InvalidEdit`` if the raise of a budget was over before the request for it was approved."""
    now = timezone.now()
    for change in changes:
        if change.kind == "budget" and is_over(change.after, now) and not is_over(change.before, now):
            text = f"The raise of budget {change.name} is over by now: rebase the request, or withdraw it."
            raise InvalidEdit({"request": [text]})


def _write_audit_lines(row: ChangeRequest, changes: list[Changed], revision: Revision) -> None:
    """Write the entries in the revision being made, before its rows are written."""
    things = {(change.kind, change.name): change for change in changes}
    versions = _versions(row.environment, [entry for entry in row.entries if "before" not in entry])
    for entry in row.entries:
        thing = things.get((entry["kind"], entry["name"]))
        before, after = entry.get("before"), entry.get("after")
        if thing is not None and "before" not in entry:
            version = versions.get((thing.kind, thing.name), 0)
            before, after = _at(thing.before, version), _at(thing.after, version + 1)
        before, after = _numbered(before, revision.number - 1), _numbered(after, revision.number)
        revision.audit_change(entry["action"], Changed(entry["kind"], entry["name"], before, after))


def _versions(environment: str, entries: list[Fields]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for kind, (model, name) in VERSIONED.items():
        names = [entry["name"] for entry in entries if entry["kind"] == kind]
        rows = model._default_manager.filter(**{"environment_id": environment, f"{name}__in": names})
        found |= {(kind, key): version for key, version in rows.values_list(name, "version")}
    return found


def _at(fields: Fields | None, version: int) -> Fields | None:
    return None if fields is None else {**fields, "version": version}


def _numbered(fields: Fields | None, number: int) -> Fields | None:
    """Replace the revision that an entry names. It has another number than when the request was made."""
    return {**fields, "revision": number} if fields and "revision" in fields else fields


@contextmanager
def pending(environment: str, request: int, actor: Actor, *, strict: bool = True) -> Iterator[ChangeRequest]:
    """The request, locked, in a transaction attributed to ``actor``."""
    with transaction.atomic():
        acting(actor)
        rows = ChangeRequest.objects.select_for_update().filter(environment=environment)
        row = find(rows, "change request", pk=request)
        if strict and not row.pending:
            raise InvalidEdit({"request": [f"It is already {row.get_state_display().lower()}."]})
        if row.changed > ROWS_PER_STATEMENT:
            # Comparing very many things takes longer than a transaction may be idle.
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '120s'")
                cursor.execute("SET LOCAL statement_timeout = '60s'")
        yield row


def _approver(row: ChangeRequest, actor: Actor) -> str:
    """Username of the person who decides about another person's request."""
    person = person_of(actor)
    users = get_user_model()._default_manager
    user = users.filter(username=person, is_active=True).first() if person else None
    if user is None:
        raise NotYours("Only a person can decide about a request, and this token has no owner.")
    if not may(user, "approve_change", row.environment):
        raise NotYours("The owner of this token may not approve requests.")
    if _is_one_of(person, row.persons):
        raise NotYours("Another person has to decide about it: you have made or changed it.")
    return person


def not_independent(row: ChangeRequest, person: str, approved_by: Sequence[str] = ()) -> str:
    """Why this person's approval would not be that of another person; an empty text if it would."""
    makers = [*row.persons] if row.persons else [row.author]
    access = given_access.between(person, [*makers, *approved_by])
    if access is None:
        return ""
    return (
        f"Another person has to approve it: {access}. Until {access.until:%Y-%m-%d}, {person} does not"
        " count as a different person from those who made, changed or approved it."
    )


def _check_independent(row: ChangeRequest, person: str, approved_by: list[str]) -> None:
    why = not_independent(row, person, approved_by)
    if why:
        refused.labels("access_given").inc()
        log.warning(
            "change_request.approval_refused",
            environment=row.environment,
            request=row.pk,
            person=person,
            problem=why,
        )
        raise NotYours(why)


def _is_one_of(person: str, people: list[str]) -> bool:
    """By username, or by the email address that another account of the same person has."""
    users = get_user_model()._default_manager
    addresses = users.filter(username__in=people).exclude(email="").values_list("email", flat=True)
    mine = users.filter(username=person).values_list("email", flat=True).first() or ""
    return person in people or mine.lower() in {address.lower() for address in addresses}


def _check_version(row: ChangeRequest, expected: int) -> None:
    if row.version != expected:
        raise EditConflict(
            expected_version=expected,
            current_version=row.version,
            changed={"request": "It was rebased: review the difference again."},
            by=row.persons[-1] if row.persons else row.author,
            at=None,
        )


def _end(row: ChangeRequest, state: RequestState, actor: Actor, reason: str) -> None:
    row.state, row.ended_at = state, timezone.now()
    row.ended_by, row.ended_reason = actor.name[:200], reason
    row.save(update_fields=["state", "ended_at", "ended_by", "ended_reason"])
    proposals.note(row, f"change_request.{state}", actor, reason)
    ended.labels(state).inc()
    log.info("change_request.ended", environment=row.environment, request=row.pk, state=str(state))
