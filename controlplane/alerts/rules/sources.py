"""Alert rules about servers of Redis as the worker sees them, figures that are missing, and the export."""

from collections.abc import Callable
from typing import Any

from controlplane.alerts.rules import headlines
from controlplane.alerts.rules.rule import BOTH, FLEET, Rule, Scope, Severity, Subject
from controlplane.alerts.rules.timings import NEEDED_BY, timing_of
from controlplane.audit_export.waiting import WaitingExport
from controlplane.phrases import count
from controlplane.status.status import Status
from controlplane.status.watched import Blind, RedisServer

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


def _degraded(status: Status) -> list[RedisServer]:
    return [server for server in status.facts.redis_servers if server.degraded_because]


def _which_degraded(status: Status) -> str:
    named = [f"{one.address} {' and '.join(one.degraded_because)}" for one in _degraded(status)[:3]]
    more = len(_degraded(status)) - len(named)
    of = f"Of {count(len(status.facts.redis_servers), 'server')}: "
    return f"{of}{'; '.join(named)}{f'; and {more} more' if more else ''}."


def _hides_on_call(blind: Blind) -> bool:
    """Missing figures count as failing: as bad as the worst alert that is not seen because of them."""
    return any(timing_of(rule).level > 1 for rule in NEEDED_BY[blind.source])


def _hides_reports(blind: Blind) -> bool:
    return not _hides_on_call(blind)


def _what_is_hidden(blind: Blind) -> str:
    because = f"{blind.because[:1].upper()}{blind.because[1:]}."
    if not blind.only:
        return f"{because} Alerts of these rules keep their state: {', '.join(NEEDED_BY[blind.source])}."
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


_BLIND: tuple[tuple[Severity, Callable[[Blind], bool]], ...] = (
    ("critical", _hides_on_call),
    ("warning", _hides_reports),
)

SOURCE_RULES: tuple[Rule[Any], ...] = (
    *(
        Rule[tuple[WaitingExport, float]](
            key="audit-export",
            severity=severity,
            runbook="audit-export-stuck",
            scope=_EACH_EXPORT,
            value=lambda found: found[1],
            text=lambda found: f"The export of the audit is stuck: {found[0].target}",
            detail=_why_stuck,
            since=lambda found: found[0].at,
        )
        for severity in BOTH
    ),
    *(
        Rule[Blind](
            key="blind",
            severity=severity,
            said=headlines.blind,
            runbook="figures-missing",
            scope=_EACH_BLIND,
            test=test,
            text=lambda blind: f"{headlines.SOURCES[blind.source]} cannot be read",
            detail=_what_is_hidden,
            since=lambda blind: blind.since,
        )
        for severity, test in _BLIND
    ),
    Rule[RedisServer](
        key="redis-node",
        severity="warning",
        runbook="redis-nodes-degraded",
        scope=_EACH_REDIS_SERVER,
        test=lambda server: bool(server.ill_because),
        text=lambda server: f"Redis {server.address} {' and '.join(server.ill_because)}",
        detail=lambda server: f"It is a {server.role}.",
    ),
    Rule[Status](
        key="redis-nodes",
        severity="critical",
        runbook="redis-nodes-degraded",
        scope=FLEET,
        value=lambda status: len(_degraded(status)),
        names_thresholds=True,
        text=lambda status: f"{count(len(_degraded(status)), 'server')} of Redis are degraded",
        detail=_which_degraded,
    ),
    Rule[Status](
        key="writes-refused",
        severity="warning",
        said=lambda _: headlines.WRITES_REFUSED,
        runbook="writes-refused",
        scope=FLEET,
        test=lambda status: bool(status.figures.writes_refused),
        text=lambda status: (
            f"Postgres refuses what gateway {' and '.join(sorted(status.figures.writes_refused))} writes"
        ),
        detail=lambda status: (
            f"{count(sum(status.figures.writes_refused.values()), 'value')} within ten minutes. The"
            " gateway dropped them: figures or rows of pods can be missing or old."
        ),
    ),
)
