"""Alert rules about pods that protect themselves: pressure, shedding, bulkheads, and retries."""

from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules import texts
from controlplane.alerts.rules.promql import IN_ENVIRONMENT, NAMES_DEPENDENCY, REQUESTS, share
from controlplane.alerts.rules.rule import (
    EACH_BREAKER,
    FLEET,
    Headline,
    PrometheusQuery,
    Rule,
    Scope,
    Subject,
    Timing,
    jumping,
)
from controlplane.fleet.call_figures import TIERS, CallFigures, SlotFigures
from controlplane.phrases import count, name_or_count, percent
from controlplane.status.breakers import BreakerStatus
from controlplane.status.facts import Observing
from controlplane.status.observed import (
    OBSERVED,
    observed_head,
    observed_join,
    observed_rate,
    observed_until,
)
from controlplane.status.servers import HEALTHY_WORDS, UNHEALTHY_AT, ServerStatus, spared_how, worst_part
from controlplane.status.status import Status
from fuseboard.contract.protection import Bulkhead
from fuseboard.contract.words import WhenFull

#: Places to wait, of a policy that does not name them.
_QUEUES = Bulkhead().queues
_SHED = 'fuseboard_fleet_refused_per_second{reason="shed"}'
#: Unhealthy pods that the alert names.
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class ObservedPart:
    one: Observing
    status: Status


_EACH_OBSERVED = Scope[ObservedPart](
    each=lambda status: [ObservedPart(one=one, status=status) for one in status.facts.observing_now],
    key=lambda part: part.one.part,
    subject=lambda _: Subject(kind="servers"),
)


def _pressed(status: Status) -> str:
    return f"{name_or_count(status.fleet.pressed)} under pressure"


def _why_pressed(status: Status) -> str:
    first = next(one.server.load for one in status.fleet.servers if one.name == status.fleet.pressed[0])
    cause = first.cause if first is not None and first.cause else "the cause is in the pod\u2019s log"
    unready = len(status.fleet.unready)
    also = f" {count(unready, 'pod')} unready." if unready else ""
    return f"{status.fleet.pressed[0]}: {cause}.{also}"


def _shed_per_s(status: Status) -> float:
    return status.figures.refused_by_reason.get("shed", 0.0)


def _shed_share(status: Status) -> float:
    """0 while there are too few requests to say."""
    if texts.few_requests(status):
        return 0.0
    return min(1.0, _shed_per_s(status) / status.figures.requests_per_s)


def _pressed_share(status: Status) -> float:
    return len(status.fleet.pressed) / max(1, status.fleet.live)


def _unhealthy(status: Status) -> tuple[str, ...]:
    """Unhealthy pods. While none is, and an alert has not ended yet, the worst pod."""
    worst = max(status.fleet.servers, key=lambda one: worst_part(one.server), default=None)
    return status.fleet.unhealthy or ((worst.name,) if worst is not None else ())


def _worst(status: Status) -> float:
    return max((worst_part(one.server) for one in status.fleet.servers), default=0.0)


def _why_unhealthy(status: Status) -> str:
    observes = status.facts.observes("shedding")
    named = _unhealthy(status)[:_NAMED]
    servers = [one for one in status.fleet.servers if one.name in named]
    said = [
        f"{one.name}: {_why(one)}; {spared_how(one.server, observes=observes)}."
        for one in sorted(servers, key=lambda one: named.index(one.name))
    ]
    more = len(_unhealthy(status)) - len(named)
    return " ".join([*said, *([f"The page of the pods lists {more} more."] if more else [])])


def _why(one: ServerStatus) -> str:
    near = f"{100 * worst_part(one.server):.0f} % of a limit for healthy pods"
    return ", ".join(one.because) or near


def _why_observes(part: ObservedPart) -> str:
    refuses = "It refuses" if part.one.part == "shedding" else "They refuse"
    rate = observed_rate(part.status.facts, part.one)
    return f"{refuses} nothing {observed_until(part.one)}. {rate}"


def _observes(part: ObservedPart) -> Headline:
    return Headline(OBSERVED[part.one.part], observed_join(part.one), "in trial mode")


def _calls(breaker: BreakerStatus) -> CallFigures:
    return breaker.protected or CallFigures()


def _full(breaker: BreakerStatus) -> list[SlotFigures]:
    """Tiers that refuse calls, except those whose calls may be discarded: that is what an admin wants."""
    policies: list[str] = breaker.dependency.protection.get("bulkhead", {}).get("when_full", [])
    discarded = {tier for tier, policy in zip(TIERS, policies, strict=False) if policy == WhenFull.DISCARD}
    return [tier for tier in _calls(breaker).tiers if tier.refused_per_s > 0 and tier.tier not in discarded]


def _queue_share(breaker: BreakerStatus) -> float:
    """The part of the places to wait for a slot that is taken, over all pods that call."""
    calls = _calls(breaker)
    if calls.queue_size is not None:
        places = calls.queue_size
    else:
        places = sum(breaker.dependency.protection.get("bulkhead", {}).get("queues", _QUEUES)) * calls.callers
    return calls.queued / places if places else 0.0


def _why_full(breaker: BreakerStatus) -> str:
    tiers = [
        f"{tier.tier} {tier.refused_per_s:.1f}/s, {tier.active} of {tier.limit} slots in use"
        for tier in _full(breaker)
    ]
    return f"Calls refused: {'; '.join(tiers)}. Breakers do not count them."


PROTECTION_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="pressure",
        describes="pods are under pressure",
        # Share of the live pods under pressure above which it is more than a few bad pods.
        threshold=jumping(warning=0.0, critical=0.5),
        value=_pressed_share,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        pods=lambda status: status.fleet.pressed,
        text=_pressed,
        detail=_why_pressed,
        headline=lambda status: Headline.of_pods(status.fleet.pressed, "is", "are", "under pressure"),
        weight=240,
        handled="Pods with shedding refuse the calls of the lowest priority first.",
        explains=("shed", "unhealthy"),
        prometheus=PrometheusQuery(
            place=140,
            promql='sum by (environment) (fuseboard_fleet_pods_by_pressure{level!="normal"}) >',
            summary="{{ $value }} pods are under pressure " + IN_ENVIRONMENT,
            severities=("warning",),
        ),
        runbook="pod-under-pressure",
    ),
    Rule[Status](
        key="shed",
        describes="pods shed requests",
        # Share of the requests that pods shed.
        threshold=jumping(warning=0.01, critical=0.1),
        value=_shed_share,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        idle=texts.few_requests,
        text=lambda status: f"Pods shed {percent(_shed_share(status))} of requests",
        detail=lambda status: (
            f"{_shed_per_s(status):.1f}/s. They answer 503 with Retry-After, to the lowest tiers first."
        ),
        headline=lambda _: Headline("Pods", "shed", "requests"),
        weight=86,
        handled="Pods shed the calls of the lowest priority first.",
        prometheus=PrometheusQuery(
            place=190,
            promql=f"{share(_SHED, REQUESTS)} >",
            summary="Pods shed {{ $value | humanizePercentage }} of the requests " + IN_ENVIRONMENT,
        ),
        runbook="shedding",
    ),
    Rule[Status](
        key="unhealthy",
        describes="pods are unhealthy",
        threshold=jumping(
            warning=UNHEALTHY_AT,
            unit="% of a limit for healthy pods",
            least=0.1,
            most=100.0,
            note=f"The limits are {HEALTHY_WORDS}.",
        ),
        value=_worst,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        pods=_unhealthy,
        subject=lambda status: Subject(kind="server", name=_unhealthy(status)[0]),
        text=lambda status: f"{name_or_count(_unhealthy(status))} unhealthy",
        detail=_why_unhealthy,
        headline=lambda status: Headline.of_pods(status.fleet.unhealthy, "is", "are", "unhealthy"),
        weight=350,
        runbook="pod-under-pressure",
    ),
    Rule[ObservedPart](
        key="observing",
        describes="a part of the protection is in trial mode",
        severity="warning",
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=10),
        needs_gateway=False,
        scope=_EACH_OBSERVED,
        test=lambda _: True,
        since=lambda part: part.one.since,
        text=lambda part: observed_head(part.one),
        detail=_why_observes,
        headline=_observes,
        weight=390,
        runbook="protection-observes",
    ),
    Rule[BreakerStatus](
        key="bulkhead",
        describes="a bulkhead refuses calls",
        severity="warning",
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=EACH_BREAKER,
        test=lambda breaker: bool(_full(breaker)),
        text=lambda breaker: f"The bulkhead of {breaker.name} is full",
        detail=_why_full,
        headline=lambda breaker: Headline(f"The bulkhead of {breaker.name}", "is", "full"),
        weight=280,
        handled="Calls over the size of the bulkhead are refused, or get the fallback if there is one.",
        prometheus=PrometheusQuery(
            place=300,
            promql="sum by (environment, dependency) (fuseboard_fleet_bulkhead_refused_per_second) > 0",
            summary="The bulkhead refuses calls: " + NAMES_DEPENDENCY,
        ),
        runbook="bulkhead-full",
    ),
    Rule[BreakerStatus](
        key="bulkhead-queue",
        describes="the queues of a bulkhead are nearly full",
        # Share of the places of a bulkhead's queue in which calls wait.
        threshold=jumping(warning=0.8),
        value=_queue_share,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=EACH_BREAKER,
        text=lambda breaker: f"The queue of {breaker.name} is {_queue_share(breaker) * 100:.0f} % full",
        detail=lambda breaker: (
            f"{count(_calls(breaker).queued, 'call')} wait for a slot. When no place is left, further"
            " calls are refused."
        ),
        headline=lambda breaker: Headline(f"The queue of {breaker.name}", "is", "nearly full"),
        weight=290,
        prometheus=PrometheusQuery(
            place=310,
            promql=(
                'sum by (environment, dependency) (fuseboard_fleet_bulkhead_slots{kind="queued"})'
                ' / (sum by (environment, dependency) (fuseboard_fleet_adaptive_queue{kind="places"}) > 0) >'
            ),
            summary="The queue is {{ $value | humanizePercentage }} full: " + NAMES_DEPENDENCY,
        ),
        runbook="bulkhead-full",
    ),
    Rule[BreakerStatus](
        key="retry-budget",
        describes="a retry budget is spent",
        severity="warning",
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=EACH_BREAKER,
        test=lambda breaker: _calls(breaker).no_budget_per_s > 0,
        text=lambda breaker: f"The retry budget of {breaker.name} is spent",
        detail=lambda breaker: (
            f"{_calls(breaker).no_budget_per_s:.1f} failed calls/s are not repeated;"
            f" {_calls(breaker).retries_per_s:.1f} retries/s are made for"
            f" {_calls(breaker).first_calls_per_s:.1f} calls/s."
        ),
        headline=lambda breaker: Headline(f"The retry budget of {breaker.name}", "is", "spent"),
        weight=340,
        handled="Further retries are not made, so that they do not add load.",
        prometheus=PrometheusQuery(
            place=320,
            promql=(
                "sum by (environment, dependency)"
                ' (fuseboard_fleet_retries_per_second{verdict="no_budget"}) > 0'
            ),
            summary="The retry budget is spent: " + NAMES_DEPENDENCY,
        ),
        runbook="retry-budget-spent",
    ),
)
