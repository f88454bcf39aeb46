"""Stores suggestions, and what a person decided about them."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import InvalidEdit, NotFound, find
from controlplane.fleet.stated_limits import seen_limits
from controlplane.policies.document import environment_of
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Dependency, Environment, VendorLimit
from controlplane.postgres import transaction_lock
from controlplane.suggestions.evidence import Found, suggested
from controlplane.suggestions.models import Suggestion, SuggestionKind
from controlplane.validation import Problems

#: A suggestion stays this long after its evidence was last found: a quiet moment does not end it.
STAYS = timedelta(hours=1)
#: A declined one is kept for this long after that, so that it does not come back.
DECLINED_STAYS = timedelta(days=90)


def look_for_suggestions(now: datetime | None = None) -> None:
    """Compare the limits of all vendors with what pods report."""
    now = now or timezone.now()
    for environment in Environment.objects.order_by("slug").values_list("slug", flat=True):
        _look(environment, now)


def _look(environment: str, now: datetime) -> None:
    seen = seen_limits(environment)
    with transaction.atomic():
        # Two workers at once find the same.
        transaction_lock("fuseboard.suggestions", environment)
        rows = {
            (row.dependency, row.limit, row.kind): row
            for row in Suggestion.objects.filter(environment=environment)
        }
        known = set()
        limits = VendorLimit.objects.filter(dependency__environment=environment).select_related("dependency")
        for limit in limits.order_by("dependency__name", "name") if seen or rows else ():
            key = limit.dependency.name, limit.name
            known.add(key)
            for found in suggested(limit, seen.get(key, ()), now):
                row = rows.get((*key, found.kind)) or Suggestion(
                    environment=environment,
                    dependency=key[0],
                    limit=key[1],
                    kind=found.kind,
                    first_at=now,
                )
                _store(row, found, limit, now)
        gone = [row.pk for (dependency, limit, _), row in rows.items() if (dependency, limit) not in known]
        old = Q(last_at__lt=now - STAYS, declined_number=None) | Q(last_at__lt=now - DECLINED_STAYS)
        Suggestion.objects.filter(Q(pk__in=gone) | old, environment=environment).delete()


def _store(row: Suggestion, found: Found, limit: LimitColumns, now: datetime) -> None:
    if not row._state.adding and not row.is_about(limit):
        # It is about another limit than before.
        row.first_at = now
    row.configured, row.algorithm, row.window_s = limit.limit, limit.algorithm, limit.window_s
    row.number, row.evidence, row.last_at = found.number, found.evidence, now
    row.save()


def present_suggestions(environment: str, dependency: str) -> list[Suggestion]:
    """The suggestions for its limits as they are configured now, also the declined ones."""
    rows = Suggestion.objects.filter(environment=environment, dependency=dependency)
    limits = VendorLimit.objects.filter(dependency__environment=environment, dependency__name=dependency)
    configured = {limit.name: limit for limit in limits}
    # After an edit, the evidence is about the limit of before until it is found again. One that came back
    # after a person declined another number is kept for longer than its evidence.
    old = timezone.now() - STAYS
    return [
        row
        for row in rows.order_by("limit", "kind")
        if (limit := configured.get(row.limit)) is not None
        and row.is_about(limit)
        and (row.is_declined or row.last_at >= old)
    ]


def decline_suggestion(
    *, environment: str, dependency: str, limit: str, kind: str, reason: str, actor: Actor
) -> Suggestion:
    """Do not suggest this number again, until it changes by 10 %."""
    problems = Problems()
    problems.reason(reason)
    if kind not in SuggestionKind.values:
        problems.add("kind", f"Choose one of: {', '.join(SuggestionKind.values)}.")
    problems.settle()
    slug = environment_of(environment).slug
    find(Dependency.objects.filter(environment=slug), "dependency", name=dependency)
    with transaction.atomic():
        row = (
            Suggestion.objects.select_for_update()
            .filter(environment=slug, dependency=dependency, limit=limit, kind=kind)
            .first()
        )
        if row is None:
            raise NotFound("suggestion", f"{dependency}/{limit} {kind}")
        if row.is_declined:
            raise InvalidEdit({"kind": ["This suggestion is declined already."]})
        row.declined_number, row.declined_at = row.number, timezone.now()
        row.declined_by, row.declined_reason = actor.name[:200], reason
        row.save()
        record(
            actor=actor,
            action="suggestion.declined",
            target_kind="dependency",
            target_name=dependency,
            before=None,
            after={"limit": limit, "kind": kind, "number": row.number, "evidence": row.evidence},
            reason=reason,
            environment=slug,
        )
    return row
