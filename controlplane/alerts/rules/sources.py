"""Alert rules about servers of Redis as the worker sees them, figures that are missing, and the export."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from controlplane.alerts.rules.promql import IN_ENVIRONMENT, USED_CAPACITY
from controlplane.alerts.rules.rule import (
    FLEET,
    Headline,
    PrometheusQuery,
    Rule,
    Scope,
    Subject,
    Threshold,
    Timing,
    seconds,
)
from controlplane.audit_export.waiting import WaitingExport
from controlplane.phrases import count
from controlplane.status.status import Status
from controlplane.status.watched import (
    MAX_MEMORY_SHARE,
    MAX_OPS_SHARE,
    MAX_REPLICATION_LAG_S,
    Blind,
    RedisServer,
    Source,
)

#: The words of each ``controlplane.status.watched.Source``.
_SOURCES: Mapping[Source, str] = MappingProxyType(
    {
        "budgets": "What is spent of quotas and budgets",
        "redis": "The servers of Redis",
        "series": "The history of calls",
        "tokens": "Tokens, certificates and stored secrets",
    }
)

_EACH_REDIS_SERVER = Scope[RedisServer](
    each=lambda status: status.facts.redis_servers,
    key=lambda server: server.address,
    subject=lambda _: Subject(kind="servers"),
)
_EACH_BLIND = Scope[Blind](
    each=lambda status: status.facts.blind,
    key=lambda blind: blind.source,
    subject=lambda _: Subject(kind="alerts"),
)
_EACH_EXPORT = Scope[tuple[WaitingExport, float]](
    each=lambda status: [(one, max(0.0, status.facts.now - one.at)) for one in status.facts.exports],
    key=lambda found: found[0].target,
    subject=lambda _: Subject(kind="audit"),
)


_ILL_NODE = (
    "min by (node) (fuseboard_redis_up) == 0"
    f" or max by (node) (fuseboard_redis_replication_lag_seconds) > {MAX_REPLICATION_LAG_S:g}"
    " or max by (node) (fuseboard_redis_memory_bytes / fuseboard_redis_memory_limit_bytes)"
    f" > {MAX_MEMORY_SHARE:g}"
)
_DEGRADED_NODES = f"{_ILL_NODE} or {USED_CAPACITY} > {MAX_OPS_SHARE:g}"


def _degraded(status: Status) -> list[RedisServer]:
    return [server for server in status.facts.redis_servers if server.degraded_because]


def _which_degraded(status: Status) -> str:
    named = [f"{one.address} {' and '.join(one.degraded_because)}" for one in _degraded(status)[:3]]
    more = len(_degraded(status)) - len(named)
    of = f"Of {count(len(status.facts.redis_servers), 'server')}: "
    return f"{of}{'; '.join(named)}{f'; and {more} more' if more else ''}."


def _what_is_hidden(blind: Blind, rules: Iterable[Rule[Any]]) -> str:
    because = f"{blind.because[:1].upper()}{blind.because[1:]}."
    if not blind.only:
        keys = ", ".join(sorted(rule.key for rule in rules))
        return f"{because} Alerts of these rules keep their state: {keys}."
    named = ", ".join(sorted(blind.only)[:3])
    more = len(blind.only) - 3
    return f"{because} Alerts about them keep their state: {named}{f', and {more} more' if more > 0 else ''}."


def _why_stuck(found: tuple[WaitingExport, float]) -> str:
    one, age_s = found
    wait = (
        f"{one.entries:,} {'entry waits' if one.entries == 1 else 'entries wait'}, the oldest for"
        f" {age_s / 60:,.0f} min: number {one.sequence} of {one.environment}."
    )
    if not one.failures:
        return f"{wait} No attempt failed: no worker exports, or it exports more slowly than entries come."
    return f"{wait} {count(one.failures, 'attempt')} in a row failed; the last one: {one.problem}."


AUDIT_EXPORT = Rule[tuple[WaitingExport, float]](
    key="audit-export",
    describes="a target of the audit export lacks an old entry",
    # The oldest audit entry that a target of the export lacks. Between two attempts are at most
    # 5 minutes.
    threshold=seconds(
        warning=600.0,
        critical=3600.0,
        least=60.0,
        most=86_400.0,
    ),
    value=lambda found: found[1],
    timing=Timing(level=2, fires_after_s=60, resolves_after_s=60),
    needs_gateway=False,
    scope=_EACH_EXPORT,
    since=lambda found: found[0].at,
    text=lambda found: f"The export of the audit is stuck: {found[0].target}",
    detail=_why_stuck,
    handled="The worker tries again at least each 5 minutes. No entry is left out.",
    prometheus=PrometheusQuery(
        place=400,
        promql="max by (target) (fuseboard_audit_export_oldest_seconds) >",
        summary="The export of the audit to the {{ $labels.target }} waits since"
        " {{ $value | humanizeDuration }}",
    ),
    runbook="audit-export-stuck",
)


def blind_rule(rules: Iterable[Rule[Any]]) -> Rule[Blind]:
    """Missing figures count as failing: as bad as the worst alert that is not seen because of them."""

    def needing(blind: Blind) -> list[Rule[Any]]:
        return [rule for rule in rules if rule.needs == blind.source]

    return Rule[Blind](
        key="blind",
        describes="figures cannot be read",
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=60),
        needs_gateway=False,
        scope=_EACH_BLIND,
        is_critical=lambda blind: any(rule.timing.level > 1 for rule in needing(blind)),
        since=lambda blind: blind.since,
        text=lambda blind: f"{_SOURCES[blind.source]} cannot be read",
        detail=lambda blind: _what_is_hidden(blind, needing(blind)),
        headline=lambda blind: Headline(_SOURCES[blind.source], "cannot", "be read"),
        weight=540,
        handled="Alerts that need these figures keep their state.",
        one_explains={"redis": ("blind:budgets",)},
        runbook="figures-missing",
    )


SOURCE_RULES: tuple[Rule[Any], ...] = (
    Rule[RedisServer](
        key="redis-node",
        describes="a server of Redis is silent, far behind its primary, or nearly full",
        severity="warning",
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        needs="redis",
        needs_gateway=False,
        scope=_EACH_REDIS_SERVER,
        test=lambda server: bool(server.ill_because),
        text=lambda server: f"Redis {server.address} {' and '.join(server.ill_because)}",
        detail=lambda server: f"It is a {server.role}.",
        prometheus=PrometheusQuery(
            place=160,
            promql=_ILL_NODE,
            summary="Redis {{ $labels.node }} gives no answer, is far behind its primary,"
            " or has little memory left",
        ),
        runbook="redis-nodes-degraded",
    ),
    Rule[Status](
        key="redis-nodes",
        describes="more than 3 servers of Redis are degraded",
        # Servers of Redis that are degraded: more than this number is critical.
        threshold=Threshold(critical=3, unit="servers", scale=1.0, most=200, whole=True),
        value=lambda status: len(_degraded(status)),
        names_thresholds=True,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=120),
        needs="redis",
        needs_gateway=False,
        scope=FLEET,
        text=lambda status: f"{count(len(_degraded(status)), 'server')} of Redis are degraded",
        detail=_which_degraded,
        explains=("redis-node",),
        prometheus=PrometheusQuery(
            place=410,
            promql=f"count({_DEGRADED_NODES}) >",
            summary="{{ $value }} servers of Redis are degraded",
        ),
        runbook="redis-nodes-degraded",
    ),
    Rule[Status](
        key="writes-refused",
        describes="Postgres refuses values that a gateway writes",
        severity="warning",
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: bool(status.figures.writes_refused),
        text=lambda status: (
            f"Postgres refuses what gateway {' and '.join(sorted(status.figures.writes_refused))} writes"
        ),
        detail=lambda status: (
            f"{count(sum(status.figures.writes_refused.values()), 'value')} within ten minutes. The"
            " gateway dropped them: figures or rows of pods can be missing or old."
        ),
        headline=lambda _: Headline("Postgres", "refuses", "what a gateway writes"),
        weight=500,
        prometheus=PrometheusQuery(
            place=230,
            promql="sum by (environment) (increase(fuseboard_gateway_writes_refused_total[10m])) > 0",
            summary="Postgres refuses values that a gateway writes " + IN_ENVIRONMENT,
        ),
        runbook="writes-refused",
    ),
)
