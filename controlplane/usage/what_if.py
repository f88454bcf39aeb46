"""What an edit would have done to the last days: 429s before and after, the cluster's peak, the others."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.plans import Plan
from controlplane.policies.plans.resolving import resolve
from controlplane.policies.state import State, names_of, read_state
from controlplane.usage.replay import STEP_S, Outcome, counts_requests, replay
from controlplane.usage.rollups import let_through, measured, minutes_of

DAYS = 7


@dataclass(frozen=True, kw_only=True)
class TenantOutcome:
    tenant: str
    asked: int
    refused_before: int
    refused_after: int


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    days: int
    #: Minutes of those days in which anybody was measured; the rest is not known.
    minutes_known: int
    asked: int
    refused_before: int
    refused_after: int
    #: Requests per second let through in the busiest minute of the whole cluster.
    peak_before: float
    peak_after: float
    #: When that is, after the edit; unix seconds.
    peak_at: int | None
    #: What everybody who is not edited took of it, per second.
    others_at_peak: float
    #: Tenants that are edited and were measured, the most different first.
    tenants: tuple[TenantOutcome, ...]
    #: Edited tenants that are not known to have asked for anything.
    unmeasured: int

    @property
    def coverage_percent(self) -> float:
        return 100 * self.minutes_known * STEP_S / (self.days * 86_400)


def what_if(environment: str, plan: Plan, *, days: int = DAYS) -> WhatIf:
    """Replay the last days without and with a plan. Raises ``PlanErrors``; nothing is written."""
    since = timezone.now() - timedelta(days=days)
    known = measured(environment, since=since) | names_of(plan.things, "tenant")
    state = read_state(environment, tenants=known)
    wanted = resolve(environment, plan, state, prune=False)
    after: State = {thing: fields for thing, fields in {**state, **wanted}.items() if fields is not None}
    edited = {
        tenant
        for tenant in known
        if _limits(state, environment, tenant) != _limits(after, environment, tenant)
    }
    return _compare(environment, state, after, edited, days)


def what_if_shadow(environment: str, tenant: str, quota: str, *, days: int = DAYS) -> WhatIf:
    """What a shadow limit of a tenant would have refused, had it been in force."""
    state = read_state(environment, tenants={tenant})
    after = dict(state)
    thing = ("tenant", tenant)
    for kind, name in (thing, ("tier", state.get(thing, {}).get("tier", ""))):
        if f"quotas.{quota}.shadow" in state.get((kind, name), {}):
            # Of its tier's limit too, but for this tenant alone.
            promoted = {
                field: value
                for field, value in state[kind, name].items()
                if field.startswith(f"quotas.{quota}.")
            }
            after[thing] = {**state.get(thing, {}), **promoted, f"quotas.{quota}.shadow": False}
            break
    return _compare(environment, state, after, {tenant}, days)


def _compare(environment: str, before: State, after: State, edited: Collection[str], days: int) -> WhatIf:
    since = timezone.now() - timedelta(days=days)
    demand = minutes_of(environment, edited, since=since)
    others = Counter(let_through(environment, since=since))
    total_before: Counter[int] = Counter()
    total_after: Counter[int] = Counter()
    outcomes = []
    for tenant, minutes in demand.items():
        # Both are estimates of their own, so the rest may come out a little below nothing.
        others.subtract({at: asked - refused for at, (asked, refused) in minutes.items()})
        old = _replayed(before, environment, tenant, minutes)
        new = _replayed(after, environment, tenant, minutes)
        total_before.update(old.allowed)
        total_after.update(new.allowed)
        outcomes.append(
            TenantOutcome(
                tenant=tenant, asked=old.asked, refused_before=old.refused, refused_after=new.refused
            )
        )
    others = Counter({at: max(0, count) for at, count in others.items()})
    total_before.update(others)
    total_after.update(others)
    peak_at = max(total_after, key=lambda at: (total_after[at], -at), default=None)
    outcomes.sort(key=lambda one: (-abs(one.refused_after - one.refused_before), -one.asked, one.tenant))
    return WhatIf(
        days=days,
        minutes_known=len(others),
        asked=sum(one.asked for one in outcomes),
        refused_before=sum(one.refused_before for one in outcomes),
        refused_after=sum(one.refused_after for one in outcomes),
        peak_before=max(total_before.values(), default=0) / STEP_S,
        peak_after=max(total_after.values(), default=0) / STEP_S,
        peak_at=peak_at,
        others_at_peak=others[peak_at] / STEP_S if peak_at is not None else 0.0,
        tenants=tuple(outcomes),
        unmeasured=len(set(edited) - demand.keys()),
    )


def _replayed(state: State, environment: str, tenant: str, minutes: dict[int, tuple[int, int]]) -> Outcome:
    limits, suspended = _limits(state, environment, tenant)
    found = [dict(columns) for _, columns in limits]
    return replay(
        ((at, asked) for at, (asked, _) in sorted(minutes.items())),
        [columns for columns in found if counts_requests(columns) and not columns.get("shadow")],
        suspended=suspended,
    )


def _limits(state: State, environment: str, tenant: str) -> tuple[list[tuple[str, Fields]], bool]:
    """The limits in force for a tenant, by name; and whether it is suspended."""
    fields = state.get(("tenant", tenant), {})
    tier = fields.get("tier") or state["environment", environment]["default_tier"]
    of_tier = limits_in("quotas", state.get(("tier", tier), {}))
    own = limits_in("quotas", fields)
    return sorted({**of_tier, **own}.items()), bool(fields.get("suspended"))
