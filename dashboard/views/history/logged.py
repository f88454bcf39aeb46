"""A line of the tabs of Changes: a revision, an entry of the audit, or what breakers, alerts and pods did."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Prefetch, QuerySet
from django.urls import reverse

from controlplane.accounts.by_person import with_authors
from controlplane.audit.action_words import action_words
from controlplane.audit.models import Entry
from controlplane.editing.edits.revert import is_revertible
from controlplane.policies.history import Changed
from controlplane.policies.models import Change, Revision
from controlplane.policies.undone import Undone, undone
from controlplane.status.read_facts import change_of
from dashboard.live.change_lines import ChangeLine, line_of
from dashboard.words.change_words import ChangeWords, Tiers, change_words
from dashboard.words.changed_items import TiersInTime, are_new

#: Things of one edit that are described, and lines of each.
_THINGS, _LINES = 3, 4
#: A revision and its audit entry are written by one transaction.
_ABOUT = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class ChangedEntity:
    kind: str
    name: str
    #: created, changed or removed.
    what: str
    lines: tuple[ChangeWords, ...]
    more: int


@dataclass(frozen=True, kw_only=True)
class LoggedChange:
    at: datetime
    kind: str
    who: str
    human: bool = False
    what: str
    #: The name of what changed, and its page.
    thing: str = ""
    link: str = ""
    #: The value that was replaced, and the new one or what happened, in words.
    before: str = ""
    detail: str = ""
    #: Changed fields that these leave out, each with its values.
    left_out: tuple[str, ...] = ()
    things: tuple[ChangedEntity, ...] = ()
    more: int = 0
    reason: str = ""
    #: The ticket of an override; the token that was used and its owner; the request and its trace.
    ticket: str = ""
    by_token: str = ""
    request_id: str = ""
    trace_id: str = ""
    revision: int | None = None
    reverts: int | None = None
    restores: int | None = None
    undone: Undone | None = None
    revertible: bool = False
    css: str = ""
    #: Dependencies that it changed, which their owners revert alone.
    dependencies: tuple[str, ...] = ()


def logged_revisions(environment: str, rows: QuerySet[Revision]) -> Iterable[LoggedChange]:
    """Lines of revisions, in their order."""
    # A bulk edit has up to 100,000 things: a few are read of each edit.
    few = Change.objects.order_by("kind", "name")[:_THINGS]
    shown = list(with_authors(rows).prefetch_related(Prefetch("changes", queryset=few, to_attr="few")))
    reverted = undone(environment, [row.number for row in shown])
    entries = _entries_of(environment, [row for row in shown if not row.changed])
    tiers = TiersInTime(environment, min((row.number for row in shown), default=1) - 1)
    for row in shown:
        yield _revision(row, row.few, entries.get(row.number), reverted.get(row.number), tiers)


def _revision(
    row: Revision, changes: list[Change], entry: Entry | None, reverted: Undone | None, tiers: TiersInTime
) -> LoggedChange:
    is_override = row.action.startswith("breaker.")
    line = line_of(change_of(entry)) if entry is not None else None
    things = tuple(_entity(one, tiers.as_of(row.number - 1), tiers.as_of(row.number)) for one in changes)
    return LoggedChange(
        at=row.at,
        kind="override" if is_override else "edit",
        who=row.actor,
        human=row.by_person,
        what=action_words(row.action, added=are_new(things)),
        thing="" if changes else row.target,
        link=reverse("breaker", args=[row.target]) if is_override and row.target else "",
        before=line.before if line is not None else "",
        detail=line.after if line is not None else "",
        things=things,
        more=max(0, row.changed - len(changes)),
        reason=row.reason,
        revision=row.number,
        reverts=row.reverts,
        restores=row.restores,
        undone=reverted,
        revertible=is_revertible(row) and not (reverted and reverted.whole),
        css="st-forced" if is_override else "",
        dependencies=tuple(one.name for one in changes if one.kind == "dependency"),
    )


def _entity(one: Change, before: Tiers, after: Tiers) -> ChangedEntity:
    # A quota of a tenant that is new, or gone, is compared with that of its tier. A move to another tier is
    # one line: the page of the revision has the quotas.
    before_tier, after_tier = ((fields or {}).get("tier") for fields in (one.before, one.after))
    moves = bool(one.before and one.after) and before_tier != after_tier
    tiers = () if moves else (before, after)
    lines = change_words(Changed(one.kind, one.name, one.before, one.after), *tiers)
    return ChangedEntity(
        kind=one.kind,
        name=one.name,
        what="created" if one.before is None else "removed" if one.after is None else "changed",
        lines=tuple(lines[:_LINES]),
        more=max(0, len(lines) - _LINES),
    )


def _entries_of(environment: str, rows: list[Revision]) -> dict[int, Entry]:
    """Revision -> its first audit entry. The time, which is indexed, is that of the edit, more or less."""
    if not rows:
        return {}
    times = [row.at for row in rows]
    found = Entry.objects.filter(
        environment=environment,
        at__range=(min(times) - _ABOUT, max(times) + _ABOUT),
        revision__in=[row.number for row in rows],
    )
    return {entry.revision: entry for entry in found.order_by("-id") if entry.revision is not None}


def logged_entries(environment: str, lines: Collection[ChangeLine]) -> list[LoggedChange]:
    """Entries of the audit, with what reverts undid of their revisions."""
    numbers = {line.revision for line in lines if line.revertible and line.revision is not None}
    reverted = undone(environment, numbers) if numbers else {}
    return [logged_entry(line, reverted.get(line.revision or 0)) for line in lines]


def logged_entry(line: ChangeLine, reverted: Undone | None = None) -> LoggedChange:
    return LoggedChange(
        at=datetime.fromtimestamp(line.at, UTC),
        kind="other",
        who=line.actor,
        human=line.human,
        what=line.action,
        thing=line.target,
        link=_page_of(line),
        before=line.before,
        detail=line.after,
        left_out=line.more,
        reason=line.reason,
        ticket=line.ticket,
        by_token=line.by_token,
        request_id=line.request_id,
        trace_id=line.trace_id,
        revision=line.revision,
        undone=reverted,
        revertible=line.revertible and not (reverted and reverted.whole),
        dependencies=(line.target,) if line.target_kind == "dependency" else (),
    )


def _page_of(line: ChangeLine) -> str:
    if line.target_kind == "dependency" and line.target:
        return reverse("breaker", args=[line.target])
    if line.target_kind == "account" and line.target:
        return reverse("vendor_account", args=[line.target])
    if line.target_kind == "budget" and line.target:
        return reverse("money_budget", args=[line.target])
    if line.target_kind in ("model", "ledger") and line.target:
        return reverse("model", args=[line.target])
    if line.target_kind == "descriptors" and line.target:
        return reverse("envoy_domain", args=[line.target])
    return reverse("tenant", query={"key": line.target}) if line.target_kind == "tenant" else ""
