"""Alert rules about Redis, Postgres, and the processes of the control plane.

Those of level 3 need a person at once. Gateways apply them as well, when nobody else does: see
``controlplane.alerts.emergency``.
"""

import re
from typing import Any

from controlplane.alerts.rules import history_figures, texts
from controlplane.alerts.rules.promql import (
    IN_ENVIRONMENT,
    LIVE_PODS,
    LOCAL_PODS,
    USED_CAPACITY,
    by_environment,
)
from controlplane.alerts.rules.rule import (
    FLEET,
    Headline,
    PrometheusQuery,
    Rule,
    Scope,
    Subject,
    Threshold,
    Timing,
    jumping,
    seconds,
)
from controlplane.alerts.rules.thresholds import (
    MIN_CHECKS_PER_S,
    NOT_EVALUATED_S,
)
from controlplane.phrases import count, name_or_count, percent, rounded
from controlplane.status.status import Status
from controlplane.status.watched import RedisServer

_EACH_REDIS_SERVER = Scope[RedisServer](
    each=lambda status: [one for one in status.facts.redis_servers if one.answers],
    key=lambda server: server.address,
    subject=lambda _: Subject(kind="servers"),
    # The load of a server is not known while it does not answer.
    unseen=lambda status: [one.address for one in status.facts.redis_servers if not one.answers],
)


#: The share of requests to Redis that fail.
_FAILED_CHECKS = (
    "sum by (environment) (fuseboard_fleet_redis_failures_per_second)"
    f" / (sum by (environment) (fuseboard_fleet_redis_asked_per_second) >= {MIN_CHECKS_PER_S:g})"
)
#: Live and silent pods: the pods that are left do not decide for silent ones.
_PRESENT_PODS = by_environment('sum without (state, mode) (fuseboard_fleet_servers{state!="gone"})')


def _redis_is_down(status: Status) -> bool:
    """A gateway gets no answer, and pods confirm it: the gateway alone may be cut off."""
    # A silent pod may reach Redis or not: the pods that are left do not decide for it.
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
        f"Gateways get no answer, and {local} of {count(live, 'pod')} decide locally."
        f" {texts.approximate_limits(status)}"
    )


def _failed_share(status: Status) -> float:
    """0 while there are too few checks to say."""
    return 0.0 if _few_checks(status) else status.figures.store.failed_share


def _few_checks(status: Status) -> bool:
    return status.figures.store.asked_per_s < MIN_CHECKS_PER_S


def _failed_requests(status: Status) -> str:
    return f"{percent(_failed_share(status))} of requests to Redis fail"


def _more_than_usual(status: Status) -> str:
    """Unlike the text of the rule about many failures, which may fire beside it."""
    return f"More requests to Redis fail than usual: {percent(_failed_share(status))}"


def _requests_headline(status: Status) -> Headline:
    return Headline(f"{percent(status.figures.store.failed_share)} of requests to Redis", "", "fail")


def _why_requests_fail(status: Status) -> str:
    store = status.figures.store
    return (
        f"Of {rounded(store.asked_per_s, 2)} requests/s to Redis, {rounded(store.timeouts_per_s, 2)}"
        f" get no answer in time and {rounded(store.errors_per_s, 2)} get an error. Pods decide these calls"
        " locally."
    )


def _not_evaluated_s(status: Status) -> float:
    at = status.facts.evaluated_at
    return 0.0 if at is None else status.facts.now - at


#: Answers of Redis when it is there, but a script is not, or fails, or does not end.
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
        describes="every pod decides locally",
        severity="critical",
        timing=Timing(level=3, fires_after_s=10, resolves_after_s=30),
        scope=FLEET,
        test=texts.all_local,
        pods=lambda status: status.fleet.local,
        text=lambda _: "Every pod decides locally",
        detail=texts.approximate_limits,
        headline=texts.local_headline,
        weight=70,
        dates_incident=1,
        handled="Every pod decides with local limits, and returns to Redis automatically.",
        explains=(
            *("blind:budgets", "blind:redis", "check-errors", "check-failures", "local", "lock-failures"),
            "p99",
        ),
        shareable=True,
        prometheus=PrometheusQuery(
            place=20,
            promql=f"{LOCAL_PODS} == {LIVE_PODS} and {LIVE_PODS} > 0",
            summary="Every pod decides locally " + IN_ENVIRONMENT,
        ),
        runbook="all-pods-local",
    ),
    Rule[Status](
        key="check-errors",
        describes="requests of pods to Redis fail",
        # Share of the requests to Redis that fail: above the first it is more than noise, above
        # the second the fleet notices, and above the third a person on call must know. Below the
        # rate, a single one would count.
        threshold=jumping(warning=0.0001, critical=0.001),
        value=_failed_share,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        idle=_few_checks,
        text=_more_than_usual,
        detail=_why_requests_fail,
        headline=_requests_headline,
        weight=180,
        handled="Pods whose request fails decide that call locally.",
        shareable=True,
        history=history_figures.FAILED_CHECKS,
        prometheus=PrometheusQuery(
            place=40,
            promql=f"{_FAILED_CHECKS} >",
            summary="{{ $value | humanizePercentage }} of the requests to Redis fail " + IN_ENVIRONMENT,
        ),
        runbook="redis-unreachable",
    ),
    Rule[Status](
        key="check-failures",
        describes="so many requests of pods to Redis fail that people must know",
        threshold=jumping(critical=0.01),
        value=_failed_share,
        names_thresholds=True,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        idle=_few_checks,
        text=_failed_requests,
        detail=_why_requests_fail,
        headline=_requests_headline,
        weight=170,
        dates_incident=1,
        handled="Pods whose request fails decide that call locally.",
        explains=("check-errors",),
        shareable=True,
        history=history_figures.FAILED_CHECKS,
        prometheus=PrometheusQuery(
            place=50,
            promql=f"{_FAILED_CHECKS} >",
            summary="{{ $value | humanizePercentage }} of the requests to Redis fail " + IN_ENVIRONMENT,
        ),
        runbook="redis-unreachable",
    ),
    Rule[Status](
        key="gateway-away",
        describes="no gateway reports, and there are pods",
        severity="critical",
        timing=Timing(level=2, fires_after_s=30, resolves_after_s=30),
        needs_gateway=False,
        during_upgrades=True,
        scope=FLEET,
        test=lambda status: not status.figures.gateways and status.fleet.live > 0 and not status.facts.stale,
        text=lambda _: "No gateway reports",
        detail=lambda _: (
            "Pods decide as before. They get no edits, no process notices a silent pod, and alerts about pods"
            " keep their state."
        ),
        handled="Pods keep their configuration, and read changes from Redis.",
        explains=("silent", "uncounted"),
        shareable=True,
        prometheus=PrometheusQuery(
            place=360,
            promql="absent(fuseboard_gateway_configuration_age_seconds)",
            summary="No gateway answers",
        ),
        runbook="gateway-away",
    ),
    Rule[Status](
        key="lua-error",
        describes="Redis answers pods, but a script fails or does not end",
        severity="critical",
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: bool(_failing_scripts(status)),
        pods=_failing_scripts,
        text=lambda status: f"A script fails in Redis, for {name_or_count(_failing_scripts(status))}",
        detail=_which_script,
        headline=lambda _: Headline("A script", "fails", "in Redis"),
        weight=190,
        handled="Pods whose request fails decide that call locally.",
        explains=("check-errors", "check-failures", "local"),
        runbook="lua-error",
    ),
    Rule[Status](
        key="outbox",
        describes="an edit is not in Redis",
        # The oldest edit that is not published.
        threshold=seconds(warning=10.0, critical=60.0, least=5.0),
        value=lambda status: status.facts.outbox_oldest_s,
        timing=Timing(level=2, fires_after_s=10, resolves_after_s=30),
        needs_gateway=False,
        during_upgrades=True,
        scope=FLEET,
        subject=lambda _: Subject(kind="configuration"),
        text=lambda status: f"An edit waits for {status.facts.outbox_oldest_s:.0f} s",
        detail=lambda _: (
            "It is not in Redis yet. Pods get it from a gateway with their next heartbeat, but one that"
            " starts reads older limits."
        ),
        handled="The worker tries again each second. Pods keep the configuration before it.",
        explains=("lag",),
        prometheus=PrometheusQuery(
            place=390,
            promql="max(fuseboard_outbox_oldest_seconds) >",
            summary="An edit waits for its publication since {{ $value | humanizeDuration }}",
        ),
        runbook="configuration-lag",
    ),
    Rule[Status](
        key="postgres-down",
        describes="Postgres does not answer",
        severity="critical",
        timing=Timing(level=3, fires_after_s=10, resolves_after_s=30),
        needs_gateway=False,
        scope=FLEET,
        test=lambda status: status.facts.stale,
        since=lambda status: status.facts.as_of,
        text=lambda _: "Postgres is unavailable",
        detail=lambda _: (
            "Pods decide as before. Edits are refused, and only alerts of level 3 are evaluated and sent."
        ),
        handled="Pods and gateways keep the last configuration. Edits are refused.",
        explains=("worker-away",),
        shareable=True,
        prometheus=PrometheusQuery(
            place=340,
            promql="max(fuseboard_postgres_up) == 0",
            summary="Postgres does not answer",
        ),
        runbook="postgres-away",
    ),
    Rule[Status](
        key="redis-down",
        describes="a primary of Redis does not answer, and pods decide without it",
        severity="critical",
        timing=Timing(level=3, fires_after_s=5, resolves_after_s=30),
        scope=FLEET,
        test=_redis_is_down,
        text=_what_is_down,
        detail=_who_confirms,
        headline=lambda _: Headline("Redis", "is", "down"),
        weight=60,
        dates_incident=1,
        handled="Pods without Redis decide with local limits. They return to Redis automatically.",
        # Redis that is down explains a slow one, never the reverse.
        explains=(
            *("all-local", "blind:budgets", "blind:redis", "check-errors", "check-failures", "local"),
            *("lock-failures", "lua-error", "outbox", "p99", "redis-node", "redis-nodes"),
        ),
        prometheus=PrometheusQuery(
            place=150,
            promql=(
                f"{by_environment('fuseboard_fleet_redis_primaries_down')} > 0 and"
                f" ({LOCAL_PODS} >= 2 or {LOCAL_PODS} == {_PRESENT_PODS} and {LOCAL_PODS} > 0)"
            ),
            summary="{{ $value }} primaries of Redis give no answer " + IN_ENVIRONMENT,
        ),
        runbook="redis-unreachable",
    ),
    Rule[RedisServer](
        key="redis-ops",
        describes="a server of Redis is near its capacity",
        # Share of the capacity of a server of Redis: above it, answers become slow.
        threshold=Threshold(clear_percent=95, warning=0.8, critical=0.9),
        value=lambda server: server.used,
        timing=Timing(level=2, fires_after_s=120, resolves_after_s=120),
        needs="redis",
        needs_gateway=False,
        scope=_EACH_REDIS_SERVER,
        text=lambda server: f"Redis {server.address} is at {server.used * 100:.0f} % of its capacity",
        detail=lambda server: (
            f"{server.ops_per_s:,.0f} of {server.capacity_ops:,} commands/s. Near its capacity, answers"
            " become slow, and pods decide calls locally."
        ),
        explains=("p99",),
        prometheus=PrometheusQuery(
            place=170,
            promql=f"{USED_CAPACITY} >",
            summary="Redis {{ $labels.node }} is at {{ $value | humanizePercentage }} of its capacity",
        ),
        runbook="redis-busy",
    ),
    Rule[Status](
        key="unlimited",
        describes="every quota, and every limit of callers, is a shadow: nothing is refused",
        severity="critical",
        timing=Timing(level=3, fires_after_s=0, resolves_after_s=10),
        needs_gateway=False,
        scope=FLEET,
        test=lambda status: status.facts.unlimited,
        subject=lambda _: Subject(kind="configuration"),
        text=lambda _: "No limit refuses anything",
        detail=lambda _: (
            "Every quota of tiers and tenants, and every limit of callers, only counts (shadow)."
        ),
        headline=lambda _: Headline("No limit", "refuses", "anything"),
        weight=30,
        shareable=True,
        prometheus=PrometheusQuery(
            place=210,
            promql=by_environment("fuseboard_unlimited") + " == 1",
            summary="No limit refuses anything " + IN_ENVIRONMENT,
        ),
        runbook="nothing-limited",
    ),
    Rule[Status](
        key="worker-away",
        describes="no worker evaluates alerts",
        severity="critical",
        timing=Timing(level=3, fires_after_s=0, resolves_after_s=30),
        needs_gateway=False,
        during_upgrades=True,
        scope=FLEET,
        test=lambda status: _not_evaluated_s(status) > NOT_EVALUATED_S and not status.facts.stale,
        since=lambda status: status.facts.evaluated_at,
        text=lambda _: "No worker evaluates alerts",
        detail=lambda status: (
            f"None was evaluated for {_not_evaluated_s(status):.0f} s: the worker, beat, or their broker is"
            " down. Only alerts of level 3 are sent, and edits reach pods later."
        ),
        handled="Gateways send alerts of level 3. Web makes scheduled changes.",
        shareable=True,
        prometheus=PrometheusQuery(
            place=370,
            promql=f"time() - {by_environment('fuseboard_alerts_evaluated_timestamp_seconds')}"
            f" > {NOT_EVALUATED_S:g}",
            summary="No worker has checked the alert rules for {{ $value | humanizeDuration }} "
            + IN_ENVIRONMENT,
        ),
        runbook="worker-away",
    ),
)
