"""Alert rules about Redis, Postgres, and the processes of the control plane.

Those of level 3 need a person at once. Gateways apply them as well, when nobody else does: see
``controlplane.alerts.emergency``.
"""

import re
from typing import Any

from controlplane.alerts.rules import headlines, texts
from controlplane.alerts.rules.rule import BOTH, FLEET, Rule, Scope, Subject
from controlplane.alerts.rules.thresholds import (
    LEAST_CHECKS_PER_S,
    NOT_EVALUATED_S,
)
from controlplane.phrases import count, name_or_count, percent
from controlplane.status.status import Status
from controlplane.status.watched import RedisServer

_EACH_REDIS_SERVER = Scope[RedisServer](
    each=lambda status: [one for one in status.facts.redis_servers if one.answers],
    key=lambda server: server.address,
    subject=lambda _: Subject(kind="servers"),
)


def _redis_is_down(status: Status) -> bool:
    """A gateway gets no answer, and pods confirm it: the gateway alone may be cut off."""
    # Of silent pods, nobody knows whether they reach Redis: those that are left must not speak for them.
    confirming = max(1, min(2, status.fleet.total))
    return status.figures.store.primaries_down > 0 and len(status.fleet.local) >= confirming


def _what_is_down(status: Status) -> str:
    store = status.figures.store
    if store.primaries_down >= store.primaries:
        return "Redis is down"
    return f"{store.primaries_down} of {store.primaries} primaries of Redis are down"


def _who_confirms(status: Status) -> str:
    local, live = len(status.fleet.local), status.fleet.live
    return (
        f"Gateways get no answer, and {local} of {count(live, 'pod')} decide without Redis."
        f" {texts.approximate_limits(status)}"
    )


def _all_local(status: Status) -> bool:
    return 0 < len(status.fleet.local) == status.fleet.live


def _failed_share(status: Status) -> float:
    """0 while there are too few checks to say."""
    return 0.0 if _few_checks(status) else status.figures.store.failed_share


def _few_checks(status: Status) -> bool:
    return status.figures.store.asked_per_s < LEAST_CHECKS_PER_S


def _failed_checks(status: Status) -> str:
    return f"{percent(_failed_share(status))} of checks fail"


def _why_checks_fail(status: Status) -> str:
    store = status.figures.store
    return (
        f"Of {store.asked_per_s:.0f} questions to Redis per second, {store.timeouts_per_s:.1f} get no answer"
        f" in time and {store.errors_per_s:.1f} get an error. Pods decide these calls locally."
    )


def _not_evaluated_s(status: Status) -> float:
    at = status.facts.evaluated_at
    return 0.0 if at is None else status.facts.now - at


#: What Redis answers when it is there, but a script is not, or fails, or does not end.
_SCRIPT_ERROR = re.compile(r"answers, but: |function \S+ is missing|script|BUSY|user_function", re.ASCII)


def _failing_scripts(status: Status) -> tuple[str, ...]:
    """Live pods that name a script as the reason why they do not decide with Redis."""
    return tuple(
        server.name
        for server in status.facts.live_servers
        if server.mode == "local" and _SCRIPT_ERROR.search(server.mode_cause)
    )


def _which_script(status: Status) -> str:
    first = _failing_scripts(status)[0]
    cause = next(one.mode_cause for one in status.facts.live_servers if one.name == first)
    return f"{first}: {cause[:200]}. Pods decide these calls locally."


STORE_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="all-local",
        severity="critical",
        said=headlines.local,
        runbook="all-pods-local",
        scope=FLEET,
        pods=lambda status: status.fleet.local,
        test=_all_local,
        text=lambda _: "Every pod decides without Redis",
        # Without ``since``: "every" can become true long after each of the pods became local.
        detail=texts.approximate_limits,
    ),
    Rule[Status](
        key="check-errors",
        severity="critical",
        said=headlines.failed_checks,
        runbook="redis-unreachable",
        scope=FLEET,
        value=_failed_share,
        idle=_few_checks,
        text=_failed_checks,
        detail=_why_checks_fail,
    ),
    Rule[Status](
        key="check-errors",
        severity="warning",
        said=headlines.failed_checks,
        runbook="redis-unreachable",
        scope=FLEET,
        value=_failed_share,
        idle=_few_checks,
        text=_failed_checks,
        detail=_why_checks_fail,
    ),
    Rule[Status](
        key="check-failures",
        severity="critical",
        said=headlines.failed_checks,
        runbook="redis-unreachable",
        scope=FLEET,
        value=_failed_share,
        idle=_few_checks,
        names_thresholds=True,
        text=_failed_checks,
        detail=_why_checks_fail,
    ),
    Rule[Status](
        key="gateway-away",
        severity="critical",
        runbook="gateway-away",
        scope=FLEET,
        test=lambda status: not status.figures.gateways and status.fleet.live > 0 and not status.facts.stale,
        text=lambda _: "No gateway reports",
        detail=lambda _: (
            "Pods decide as before. They get no edits, no process notices a silent pod, and alerts about pods"
            " keep their state."
        ),
    ),
    Rule[Status](
        key="lua-error",
        severity="critical",
        said=headlines.script_fails,
        runbook="lua-error",
        scope=FLEET,
        pods=_failing_scripts,
        test=lambda status: bool(_failing_scripts(status)),
        text=lambda status: f"A script fails in Redis, for {name_or_count(_failing_scripts(status))}",
        detail=_which_script,
    ),
    *(
        Rule[Status](
            key="outbox",
            severity=severity,
            runbook="configuration-lag",
            scope=FLEET,
            subject=lambda _: Subject(kind="configuration"),
            value=lambda status: status.facts.outbox_oldest_s,
            text=lambda status: f"An edit waits for {status.facts.outbox_oldest_s:.0f} s",
            detail=lambda _: (
                "It is not in Redis yet. Pods get it from a gateway with their next heartbeat, but one that"
                " starts reads older limits."
            ),
        )
        for severity in BOTH
    ),
    Rule[Status](
        key="postgres-down",
        severity="critical",
        runbook="postgres-away",
        scope=FLEET,
        test=lambda status: status.facts.stale,
        text=lambda _: "Postgres is unavailable",
        detail=lambda _: (
            "Pods decide as before. Edits are refused, and only alerts of level 3 are evaluated and sent."
        ),
        since=lambda status: status.facts.as_of,
    ),
    Rule[Status](
        key="redis-down",
        severity="critical",
        said=lambda _: headlines.REDIS_DOWN,
        runbook="redis-unreachable",
        scope=FLEET,
        test=_redis_is_down,
        text=_what_is_down,
        detail=_who_confirms,
    ),
    *(
        Rule[RedisServer](
            key="redis-ops",
            severity=severity,
            runbook="redis-busy",
            scope=_EACH_REDIS_SERVER,
            value=lambda server: server.used,
            text=lambda server: f"Redis {server.address} is at {server.used * 100:.0f} % of its capacity",
            detail=lambda server: (
                f"{server.ops_per_s:,.0f} of {server.capacity_ops:,} commands/s. Near its capacity, answers"
                " become slow, and pods decide calls locally."
            ),
        )
        for severity in BOTH
    ),
    Rule[Status](
        key="unlimited",
        severity="critical",
        said=lambda _: headlines.NOTHING_LIMITED,
        runbook="nothing-limited",
        scope=FLEET,
        subject=lambda _: Subject(kind="configuration"),
        test=lambda status: status.facts.unlimited,
        text=lambda _: "No limit refuses anything",
        detail=lambda _: (
            "Every quota of tiers and tenants, and every limit of callers, only counts (shadow)."
        ),
    ),
    Rule[Status](
        key="worker-away",
        severity="critical",
        runbook="worker-away",
        scope=FLEET,
        test=lambda status: _not_evaluated_s(status) > NOT_EVALUATED_S and not status.facts.stale,
        text=lambda _: "No worker evaluates alerts",
        detail=lambda status: (
            f"None was evaluated for {_not_evaluated_s(status):.0f} s: the worker, beat, or their broker is"
            " down. Only alerts of level 3 are sent, and edits reach pods later."
        ),
        since=lambda status: status.facts.evaluated_at,
    ),
)
