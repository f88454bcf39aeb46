"""Saves lists under a name. The audit records what concerns a shared view; a private one is its owner's."""

import re
from collections.abc import Mapping
from itertools import chain, count

from django.db import transaction
from django.db.models import Q, QuerySet

from controlplane.accounts.models import SavedView, User
from controlplane.audit.actor import Actor
from controlplane.audit.record import acting, record
from controlplane.errors import find
from controlplane.postgres import transaction_lock
from controlplane.validation import Problems

#: Views of one person in one environment, and shared views of one environment.
MAX_VIEWS, MAX_SHARED = 50, 100
LONGEST_NAME = 64
_MAX_PARAMETERS, _LONGEST_VALUE = 20, 300
#: Filters that have a tenant, or a rule of a tenant, as the whole value.
_EXACT = frozenset({"parent", "rule", "tenant", "thing"})
#: Filters of words, which can name a tenant among others. Those of one table end with ``.q``.
_WORDS = frozenset({"endpoint", "q"})
#: A key as a whole word: ``acme-2`` and ``acme.com`` are other keys than ``acme``.
_WHOLE = r"(?<![\w-])(?<!\w[.@]){key}(?![\w-]|[.@]\w)"
_ERASED = "erased"


def views_for(username: str, environment: str) -> QuerySet[SavedView]:
    """The views that a person sees: their own, then the shared ones of other people."""
    mine = Q(owner__username=username)
    rows = SavedView.objects.filter(mine | Q(shared=True), environment=environment)
    return rows.select_related("owner").annotate(mine=mine).order_by("-mine", "name", "pk")


def save_view(
    *, environment: str, name: str, page: str, query: Mapping[str, str], shared: bool, actor: Actor
) -> SavedView:
    """Save a list for the actor. The caller checks that ``page`` is a list and knows the parameters."""
    name, problems = name.strip(), Problems()
    if len(query) > _MAX_PARAMETERS or any(len(text) > _LONGEST_VALUE for text in query.values()):
        problems.add("address", f"Use at most {_MAX_PARAMETERS} filters of {_LONGEST_VALUE} characters each.")
    with transaction.atomic():
        acting(actor)
        owner = _locked(actor)
        mine = SavedView.objects.filter(owner=owner, environment=environment)
        if mine.count() >= MAX_VIEWS:
            problems.add("name", f"You have {MAX_VIEWS} views. Delete one first.")
        _check(problems, mine, name, becomes_shared=shared, environment=environment)
        row = SavedView.objects.create(
            owner=owner, environment=environment, name=name, page=page, query=dict(query), shared=shared
        )
        _note("view.shared", row, None, actor)
    return row


def change_view(*, environment: str, view: int, name: str, shared: bool, actor: Actor) -> SavedView:
    """Rename a view of the actor, share it, or stop sharing it."""
    name, problems = name.strip(), Problems()
    with transaction.atomic():
        acting(actor)
        row, before = _own(environment, view, actor)
        others = SavedView.objects.filter(owner=row.owner, environment=environment).exclude(pk=row.pk)
        becomes_shared = shared and not row.shared
        _check(problems, others, name, becomes_shared=becomes_shared, environment=environment)
        row.name, row.shared = name, shared
        row.save(update_fields=["name", "shared"])
        _note("view.shared" if becomes_shared else "view.changed", row, before, actor)
    return row


def delete_view(*, environment: str, view: int, actor: Actor) -> SavedView:
    with transaction.atomic():
        acting(actor)
        row, before = _own(environment, view, actor)
        SavedView.objects.filter(pk=row.pk).delete()
        row.shared = False
        _note("view.deleted", row, before, actor)
    return row


def stop_sharing(*, environment: str, view: int, actor: Actor) -> SavedView:
    """Stop sharing a view of any person, who keeps it. The caller checks the right to share."""
    with transaction.atomic():
        acting(actor)
        rows = SavedView.objects.select_for_update(of=("self",)).select_related("owner")
        row = find(rows.filter(environment=environment, shared=True), "shared view", pk=view)
        before = _fields(row)
        row.shared = False
        row.save(update_fields=["shared"])
        _note("view.unshared", row, before, actor)
    return row


def erase_tenant(environment: str, tenant: str) -> int:
    """Delete the views of all people that filter by a tenant, and take its key out of the names of others.

    Returns how many views were deleted or renamed. In a transaction.
    """
    named = re.compile(_WHOLE.format(key=re.escape(tenant)), re.IGNORECASE)
    rows = list(SavedView.objects.select_for_update().filter(environment=environment))
    deleted = {row.pk for row in rows if _filters_by(row.query, tenant, named)}
    SavedView.objects.filter(pk__in=deleted).delete()
    renamed = [row for row in rows if row.pk not in deleted and named.search(row.name)]
    for row in renamed:
        row.name = _free_name(row, named.sub(_ERASED, row.name))
        row.save(update_fields=["name"])
    return len(deleted) + len(renamed)


def _filters_by(query: Mapping[str, str], tenant: str, named: re.Pattern[str]) -> bool:
    for name, value in query.items():
        kind = name.rpartition(".")[2]
        if kind in _EXACT and (value == tenant or value.startswith(f"{tenant}/")):
            return True
        if kind in _WORDS and named.search(value):
            return True
    return False


def _free_name(row: SavedView, name: str) -> str:
    """The name, with a number behind it if the owner has a view of this name."""
    others = SavedView.objects.filter(owner=row.owner_id, environment=row.environment).exclude(pk=row.pk)
    taken = set(others.values_list("name", flat=True))
    ends = chain([""], (f" {number}" for number in count(2)))
    names = (name[: LONGEST_NAME - len(end)] + end for end in ends)
    return next(free for free in names if free not in taken)


def _locked(actor: Actor) -> User:
    """The account of the actor. Its edits of views wait for each other, so that their number is bounded."""
    return find(User.objects.select_for_update(), "user", username=actor.name)


def _own(environment: str, view: int, actor: Actor) -> tuple[SavedView, dict[str, object]]:
    rows = SavedView.objects.filter(owner=_locked(actor), environment=environment)
    row = find(rows, "saved view", pk=view)
    return row, _fields(row)


def _check(
    problems: Problems, others: QuerySet[SavedView], name: str, *, becomes_shared: bool, environment: str
) -> None:
    problems.text("name", name, LONGEST_NAME)
    if not name:
        problems.add("name", "Enter a name.")
    elif others.filter(name=name).exists():
        problems.add(
            "name", "You have a view with this name. Choose another name, or delete that view first."
        )
    if becomes_shared:
        transaction_lock("shared views", environment)
        if SavedView.objects.filter(environment=environment, shared=True).count() >= MAX_SHARED:
            problems.add("shared", f"{environment} has {MAX_SHARED} shared views. Stop sharing one first.")
    problems.settle()


def _fields(row: SavedView) -> dict[str, object]:
    return {"name": row.name, "page": row.page, **row.query, "shared": row.shared}


def _note(action: str, row: SavedView, before: dict[str, object] | None, actor: Actor) -> None:
    """Record what other people see: nothing about a view that was not shared before or after."""
    if row.shared or (before and before["shared"]):
        record(
            actor=actor,
            action=action,
            target_kind="view",
            target_name=row.name,
            before=before,
            after=_fields(row) if action != "view.deleted" else None,
            reason=f"View of {row.owner.get_username()}.",
            environment=row.environment,
        )
