"""The effect of an edit on the last days: 429s before and after, the fleet's peak, other tenants."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.editing.plans import Plan
from controlplane.editing.plans.resolving import resolve
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.state import State, names_of, read_state, tenants_following
from controlplane.usage.demand_spans import Span, per_minute, spans_of, summed
from controlplane.usage.replay import STEP_S, Outcome, counts_requests, counts_some, replay
from controlplane.usage.rollups import (
    ByRule,
    Counted,
    Minutes,
    counted_by_rule,
    let_through,
    measured,
    minutes_by_rule,
    minutes_of,
)

DAYS = 7
#: Below this, too little is known to compare two limits.
MIN_COVERAGE_PERCENT = 10

#: The limits in force for a tenant, by name; and whether it is suspended.
_Limits = tuple[list[tuple[str, Fields]], bool]


@dataclass(frozen=True, kw_only=True)
class TenantOutcome:
    tenant: str
    asked: int
    refused_before: int
    refused_after: int


@dataclass(frozen=True, kw_only=True)
class RuleOutcome:
    """Refusals by one limit of the requests that it bound, all edited tenants together."""

    rule: str
    asked: int
    refused_before: int
    refused_after: int


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    days: int
    #: Minutes of those days in which any tenant was measured; the others are not known.
    minutes_known: int
    asked: int
    refused_before: int
    refused_after: int
    #: Requests per second let through in the busiest minute of the whole fleet.
    peak_before: float
    peak_after: float
    #: When that is after the edit, in unix seconds.
    peak_at: int | None
    #: Requests per second of tenants that are not edited.
    others_at_peak: float
    #: Edited tenants that were measured, those that change most first.
    tenants: tuple[TenantOutcome, ...]
    #: Edited tenants without known requests.
    unmeasured: int
    #: The edited limits that were measured themselves, by name.
    rules: tuple[RuleOutcome, ...] = ()
    #: Counts of pods for a shadow limit, where they exist.
    counted: Counted | None = None
    #: Their demand over time, and what was let through before and after.
    spans: tuple[Span, ...] = ()
    #: Requests that the limits of a single edited tenant let through in a minute; ``None`` for no limit.
    limit_before: float | None = None
    limit_after: float | None = None
    #: The first minute that is known, in unix seconds.
    known_since: int | None = None
    #: Whether any limit of a tenant changes: otherwise every request is decided as before.
    changes_limits: bool = True

    @property
    def too_little(self) -> bool:
        """Whether so little is known that the figures decide nothing."""
        return self.coverage_percent < MIN_COVERAGE_PERCENT

    @property
    def known_from(self) -> datetime | None:
        return datetime.fromtimestamp(self.known_since, UTC) if self.known_since is not None else None

    @property
    def coverage_percent(self) -> float:
        return 100 * self.minutes_known * STEP_S / (self.days * 86_400)

    @property
    def peak_time(self) -> datetime | None:
        return datetime.fromtimestamp(self.peak_at, UTC) if self.peak_at is not None else None


def what_if(environment: str, plan: Plan, *, days: int = DAYS) -> WhatIf:
    """Replay the last days without and with a plan. Raises ``PlanErrors``; writes nothing."""
    return _effect(
        environment, plan.things, days, lambda state: resolve(environment, plan, state, prune=False)
    )


def what_if_changed(
    environment: str, changes: Mapping[tuple[str, str], Fields | None], *, days: int = DAYS
) -> WhatIf:
    """``what_if`` for things as they would be: ``None`` for what would be removed."""
    return _effect(environment, changes, days, lambda _: changes)


def _effect(
    environment: str,
    things: Mapping[tuple[str, str], Any],
    days: int,
    wanted_of: Callable[[State], Mapping[tuple[str, str], Fields | None]],
) -> WhatIf:
    since = timezone.now() - timedelta(days=days)
    known = measured(environment, since=since) | names_of(things, "tenant")
    known |= tenants_following(environment, names_of(things, "template"))
    state = read_state(environment, tenants=known)
    wanted = wanted_of(state)
    after: State = {thing: fields for thing, fields in {**state, **wanted}.items() if fields is not None}
    edited = {
        tenant
        for tenant in known
        if _limits(state, environment, tenant) != _limits(after, environment, tenant)
    }
    found = _compare(environment, state, after, edited, days)
    return replace(found, changes_limits=bool(edited) or _changes_limits(state, wanted))


def _changes_limits(state: State, wanted: Mapping[tuple[str, str], Fields | None]) -> bool:
    """Whether limits of tenants change that were never measured: a tier or a template names none of them."""

    def limits(kind: str, fields: Fields | None) -> Any:
        if kind == "tier":
            return limits_in("quotas", fields or {})
        return {name: value for name, value in (fields or {}).items() if name not in ("title", "version")}

    return any(
        limits(kind, state.get((kind, name))) != limits(kind, fields)
        for (kind, name), fields in wanted.items()
        if kind in ("tier", "template", "environment")
    )


def what_if_shadow(environment: str, tenant: str, quota: str, *, days: int = DAYS) -> WhatIf:
    """Refusals that a shadow limit of a tenant would have made if it had been enforced."""
    state = read_state(environment, tenants={tenant})
    after = dict(state)
    thing = ("tenant", tenant)
    for kind, name in (thing, ("tier", state.get(thing, {}).get("tier", ""))):
        if f"quotas.{quota}.shadow" in state.get((kind, name), {}):
            # Also where it is a limit of its tier, but only for this tenant.
            promoted = {
                field: value
                for field, value in state[kind, name].items()
                if field.startswith(f"quotas.{quota}.")
            }
            after[thing] = {**state.get(thing, {}), **promoted, f"quotas.{quota}.shadow": False}
            break
    counted = counted_by_rule(environment, tenant, since=timezone.now() - timedelta(days=days))
    return replace(_compare(environment, state, after, {tenant}, days), counted=counted.get(quota))


def _compare(environment: str, before: State, after: State, edited: Collection[str], days: int) -> WhatIf:
    since = timezone.now() - timedelta(days=days)
    demand = minutes_of(environment, edited, since=since)
    by_rule = minutes_by_rule(environment, edited, since=since)
    rules = _Rules()
    others = Counter(let_through(environment, since=since))
    olds, news, outcomes = [], [], []
    for tenant, minutes in demand.items():
        # Both are independent estimates, so the difference may be slightly below zero.
        others.subtract({at: asked - refused for at, (asked, refused) in minutes.items()})
        old = _replayed(before, environment, tenant, minutes, by_rule.get(tenant, {}))
        new = _replayed(after, environment, tenant, minutes, by_rule.get(tenant, {}))
        rules.add(
            _limits(before, environment, tenant), _limits(after, environment, tenant), by_rule.get(tenant, {})
        )
        olds.append(old.allowed)
        news.append(new.allowed)
        outcomes.append(
            TenantOutcome(
                tenant=tenant, asked=old.asked, refused_before=old.refused, refused_after=new.refused
            )
        )
    others = Counter({at: max(0, count) for at, count in others.items()})
    allowed_before, allowed_after = summed(olds), summed(news)
    total_before, total_after = allowed_before + others, allowed_after + others
    asked = summed({at: count for at, (count, _) in minutes.items()} for minutes in demand.values())
    only = next(iter(edited)) if len(edited) == 1 else None
    peak_at = max(total_after, key=lambda at: (total_after[at], -at), default=None)
    outcomes.sort(key=lambda one: (-abs(one.refused_after - one.refused_before), -one.asked, one.tenant))
    return WhatIf(
        days=days,
        minutes_known=len(others),
        known_since=min(others, default=None),
        asked=sum(one.asked for one in outcomes),
        refused_before=sum(one.refused_before for one in outcomes),
        refused_after=sum(one.refused_after for one in outcomes),
        peak_before=max(total_before.values(), default=0) / STEP_S,
        peak_after=max(total_after.values(), default=0) / STEP_S,
        peak_at=peak_at,
        others_at_peak=others[peak_at] / STEP_S if peak_at is not None else 0.0,
        tenants=tuple(outcomes),
        unmeasured=len(set(edited) - demand.keys()),
        rules=rules.found(),
        spans=spans_of(asked, allowed_before, allowed_after),
        limit_before=_per_minute(before, environment, only),
        limit_after=_per_minute(after, environment, only),
    )


def _per_minute(state: State, environment: str, tenant: str | None) -> float | None:
    if tenant is None:
        return None
    limits, suspended = _limits(state, environment, tenant)
    return per_minute([columns for _, columns in limits], suspended=suspended)


def _replayed(state: State, environment: str, tenant: str, minutes: Minutes, by_rule: ByRule) -> Outcome:
    """All requests through the limits of all; then those of endpoints through their own limits."""
    limits, suspended = _limits(state, environment, tenant)
    found = {name: columns for name, columns in limits if not columns.get("shadow")}
    whole = [columns for columns in found.values() if counts_requests(columns)]
    outcome = replay(_asked(minutes), whole, suspended=suspended)
    for name, columns in found.items():
        if name in by_rule and counts_some(columns) and not counts_requests(columns) and not suspended:
            outcome = _less(outcome, by_rule[name], columns)
    return outcome


def _less(outcome: Outcome, minutes: Minutes, columns: Fields) -> Outcome:
    """The outcome when a limit of some of the requests refuses its part as well."""
    part = replay(_asked(minutes), [columns])
    allowed = dict(outcome.allowed)
    for at, (asked, _) in minutes.items():
        if at in allowed:
            allowed[at] = max(0, allowed[at] - (asked - part.allowed[at]))
    return Outcome(outcome.asked, outcome.asked - sum(allowed.values()), allowed)


def _asked(minutes: Minutes) -> Iterator[tuple[int, int]]:
    return ((at, asked) for at, (asked, _) in sorted(minutes.items()))


class _Rules:
    """Each edited limit alone, summed over the tenants for which it was measured."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._before: Counter[str] = Counter()
        self._after: Counter[str] = Counter()

    def add(self, before: _Limits, after: _Limits, by_rule: ByRule) -> None:
        old, new = dict(before[0]), dict(after[0])
        for rule, minutes in by_rule.items():
            if old.get(rule) == new.get(rule):
                continue
            for columns, refused in ((old.get(rule), self._before), (new.get(rule), self._after)):
                limits = [columns] if columns and counts_some(columns) and not columns.get("shadow") else []
                refused[rule] += replay(_asked(minutes), limits).refused
            self._asked[rule] += sum(asked for asked, _ in minutes.values())

    def found(self) -> tuple[RuleOutcome, ...]:
        return tuple(
            RuleOutcome(
                rule=rule,
                asked=asked,
                refused_before=self._before[rule],
                refused_after=self._after[rule],
            )
            for rule, asked in sorted(self._asked.items())
        )


def _limits(state: State, environment: str, tenant: str) -> _Limits:
    """The limits in force for a tenant, by name; and whether it is suspended."""
    fields = state.get(("tenant", tenant), {})
    tier = fields.get("tier") or state["environment", environment]["default_tier"]
    of_tier = limits_in("quotas", state.get(("tier", tier), {}))
    own = limits_in("quotas", fields)
    return sorted({**of_tier, **own}.items()), bool(fields.get("suspended"))
