"""Alerts about pods, their configuration, breakers, scheduled changes and refused requests."""

from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules import headlines, texts
from controlplane.alerts.rules.rule import FLEET, Rule, Scope, Subject
from controlplane.alerts.rules.thresholds import OVERDUE_S, P99_WARN_LASTS_S
from controlplane.phrases import count, moment, name_or_count, percent, they
from controlplane.runbooks.shipped import FOR_DEPENDENCIES
from controlplane.status.breakers import CANNOT_OPEN, NEAR_CALLS, PHRASES, BreakerStatus
from controlplane.status.facts import ScheduledChange
from controlplane.status.status import Status

#: For dependencies that have no runbook of their own.
GENERAL_RUNBOOK = FOR_DEPENDENCIES


@dataclass(frozen=True, kw_only=True)
class Due:
    """A scheduled change, and by how much it is late; negative while its time has not come."""

    change: ScheduledChange
    late_s: float
    #: Edits are frozen: it waits for the end of the freeze.
    frozen: bool = False


EACH_BREAKER = Scope[BreakerStatus](
    each=lambda status: status.breakers,
    key=lambda breaker: breaker.name,
    subject=lambda breaker: Subject(kind="breaker", name=breaker.name),
)
EACH_SCHEDULED_CHANGE = Scope[Due](
    each=lambda status: [
        Due(change=change, late_s=status.facts.now - change.at, frozen=status.facts.frozen)
        for change in status.facts.scheduled
    ],
    key=lambda due: due.change.key,
    subject=lambda due: (
        Subject(kind="quota", name=due.change.tenant, quota=due.change.quota)
        if due.change.tenant
        else Subject(kind="schedules")
    ),
)

FLEET_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="429",
        severity="critical",
        said=headlines.refused,
        runbook="too-many-429s",
        scope=FLEET,
        subject=texts.refused_tenant,
        value=texts.refused_share,
        idle=texts.few_requests,
        names_thresholds=True,
        text=lambda status: f"{percent(status.figures.refused_share)} of requests are refused",
        detail=texts.refused,
    ),
    Rule[Status](
        key="429",
        severity="warning",
        said=headlines.refused,
        runbook="too-many-429s",
        scope=FLEET,
        subject=texts.refused_tenant,
        value=texts.refused_share,
        idle=texts.few_requests,
        names_thresholds=True,
        text=lambda status: f"{percent(status.figures.refused_share)} of requests are refused",
        detail=texts.refused,
    ),
    Rule[Status](
        key="ahead",
        severity="critical",
        said=lambda _: headlines.AHEAD,
        runbook="postgres-restored",
        scope=FLEET,
        subject=lambda _: Subject(kind="configuration"),
        test=lambda status: bool(status.facts.ahead),
        text=lambda _: "Edits are not published: Postgres was restored",
        detail=lambda status: f"{status.facts.ahead}, which Postgres does not have. Start a new epoch.",
    ),
    Rule[Status](
        key="drill",
        severity="warning",
        said=headlines.drill,
        runbook="drill",
        scope=FLEET,
        pods=lambda status: status.fleet.drill,
        test=lambda status: bool(status.fleet.drill),
        text=lambda status: f"{count(len(status.fleet.drill), 'pod')} in a drill",
        detail=lambda status: (
            f"{they(status.fleet.drill, 'It simulates', 'They simulate')} a slow or unreachable Redis"
            " until the drill ends."
        ),
        since=lambda status: status.fleet.drill_since,
    ),
    Rule[Status](
        key="duplicated",
        severity="warning",
        said=headlines.duplicated,
        runbook="server-silent",
        scope=FLEET,
        pods=lambda status: status.facts.duplicated,
        subject=lambda status: Subject(kind="server", name=status.facts.duplicated[0]),
        test=lambda status: bool(status.facts.duplicated),
        text=lambda status: f"Two processes report as {name_or_count(status.facts.duplicated)}",
        detail=lambda _: "Each process counts as a pod, but the figures of one of the two are missing.",
    ),
    Rule[Status](
        key="frozen",
        severity="warning",
        said=lambda _: headlines.FROZEN,
        runbook="server-silent",
        scope=FLEET,
        test=lambda status: status.figures.frozen,
        text=lambda _: "Many pods went silent at once",
        detail=lambda status: texts.why_frozen(status.figures),
    ),
    Rule[BreakerStatus](
        key="override",
        severity="warning",
        runbook="breaker-held-by-hand",
        scope=EACH_BREAKER,
        test=lambda breaker: breaker.effective in CANNOT_OPEN,
        text=lambda breaker: f"{breaker.name} is {PHRASES[breaker.effective]}",
        detail=lambda _: "It cannot open during the override. Check that the dependency bears the load.",
        since=lambda breaker: breaker.since,
    ),
    Rule[Status](
        key="lag",
        severity="critical",
        said=headlines.lag,
        runbook="configuration-lag",
        scope=FLEET,
        pods=lambda status: status.fleet.lagging,
        test=lambda status: bool(status.fleet.lagging),
        value=lambda status: status.fleet.worst_lag_s,
        text=texts.lag,
        detail=texts.missing_edits,
        since=lambda status: status.fleet.lagging_since,
    ),
    Rule[Status](
        key="lag",
        severity="warning",
        said=headlines.lag,
        runbook="configuration-lag",
        scope=FLEET,
        pods=lambda status: status.fleet.lagging,
        test=lambda status: bool(status.fleet.lagging),
        value=lambda status: status.fleet.worst_lag_s,
        text=texts.lag,
        detail=texts.missing_edits,
        since=lambda status: status.fleet.lagging_since,
    ),
    Rule[Status](
        key="local",
        severity="critical",
        said=headlines.local,
        runbook="redis-unreachable",
        scope=FLEET,
        pods=lambda status: status.fleet.local,
        value=texts.local_pods,
        text=texts.local,
        detail=texts.approximate_limits,
        since=lambda status: status.fleet.local_since,
    ),
    Rule[Status](
        key="local",
        severity="warning",
        said=headlines.local,
        runbook="redis-unreachable",
        scope=FLEET,
        pods=lambda status: status.fleet.local,
        value=texts.local_pods,
        text=texts.local,
        detail=texts.approximate_limits,
        since=lambda status: status.fleet.local_since,
    ),
    Rule[Status](
        key="new-pods",
        severity="warning",
        said=lambda _: headlines.NEW_PODS,
        runbook="new-pods-refused",
        scope=FLEET,
        test=lambda status: status.figures.new_pods_refused > 0,
        text=lambda _: "New pods are refused",
        detail=lambda status: (
            f"{count(status.figures.new_pods_refused, 'heartbeat')} within a minute, because a token"
            " brought too many new names. These pods decide with Redis, but are not displayed."
        ),
    ),
    Rule[BreakerStatus](
        key="near",
        severity="warning",
        said=headlines.near,
        runbook=GENERAL_RUNBOOK,
        own_runbook=lambda breaker: breaker.dependency.runbook,
        scope=EACH_BREAKER,
        test=lambda breaker: breaker.near,
        idle=lambda breaker: breaker.effective == "closed" and breaker.calls < NEAR_CALLS,
        text=lambda breaker: f"{breaker.name} is near its threshold",
        detail=lambda breaker: (
            f"{texts.failed(breaker)}; the breaker opens at {breaker.dependency.failure_percent} %."
        ),
    ),
    Rule[BreakerStatus](
        key="open",
        severity="critical",
        runbook=GENERAL_RUNBOOK,
        own_runbook=lambda breaker: breaker.dependency.runbook,
        scope=EACH_BREAKER,
        test=lambda breaker: breaker.effective == "open",
        text=lambda breaker: f"{breaker.name} is open",
        detail=lambda breaker: (
            f"{texts.opened(breaker)}. Callers get: {breaker.dependency.fallback}."
            if breaker.dependency.fallback
            else f"{texts.opened(breaker)}."
        ),
        since=lambda breaker: breaker.since,
    ),
    Rule[Due](
        key="overdue",
        severity="critical",
        said=lambda due: headlines.overdue(due.change),
        runbook="scheduled-change-failed",
        scope=EACH_SCHEDULED_CHANGE,
        test=lambda due: not due.frozen,
        value=lambda due: due.late_s,
        text=lambda due: f"Overdue: {due.change.title[0].lower()}{due.change.title[1:]}",
        detail=lambda due: f"It was due at {moment(due.change.at)}. Check that the worker is running.",
        since=lambda due: due.change.at,
    ),
    Rule[Status](
        key="p99",
        severity="critical",
        said=headlines.redis_at_deadline,
        runbook="redis-slow",
        scope=FLEET,
        value=texts.p99_part,
        idle=lambda status: status.figures.store.p99_us is None,
        text=texts.slow_redis,
        detail=texts.slow_redis_detail,
    ),
    Rule[Status](
        key="p99",
        severity="warning",
        said=headlines.redis_slower_than_usual,
        runbook="redis-slow",
        scope=FLEET,
        value=texts.p99_part,
        idle=lambda status: status.figures.store.p99_us is None,
        text=texts.slow_redis,
        detail=texts.slow_redis_detail,
        lasting_s=P99_WARN_LASTS_S,
    ),
    Rule[Status](
        key="rejected",
        severity="critical",
        said=headlines.rejected,
        runbook="configuration-lag",
        scope=FLEET,
        pods=lambda status: status.fleet.rejected,
        test=lambda status: bool(status.fleet.rejected),
        text=lambda status: f"{name_or_count(status.fleet.rejected)} rejected the configuration",
        detail=lambda status: (
            f"{they(status.fleet.rejected, 'It keeps', 'They keep')} the last valid configuration."
            " The error is in the pod\u2019s row."
        ),
    ),
    Rule[Status](
        key="schedules",
        severity="critical",
        said=headlines.schedules,
        runbook="scheduled-change-failed",
        scope=FLEET,
        subject=lambda _: Subject(kind="schedules"),
        test=lambda status: status.facts.schedules_failed > 0,
        text=lambda status: f"{count(status.facts.schedules_failed, 'scheduled change')} failed",
        detail=lambda _: "Nothing was changed. Make the change by hand, or schedule it again.",
    ),
    Rule[Status](
        key="silent",
        severity="warning",
        said=headlines.silent,
        runbook="server-silent",
        scope=FLEET,
        pods=lambda status: status.fleet.silent,
        test=lambda status: bool(status.fleet.silent),
        text=lambda status: f"No heartbeat from {name_or_count(status.fleet.silent)}",
        detail=lambda status: (
            f"{they(status.fleet.silent, 'It', 'They')} may have stopped, or may be cut off from the"
            " control plane and still decide calls."
        ),
        since=lambda status: status.fleet.silent_since,
    ),
    Rule[Status](
        key="unknown-revision",
        severity="critical",
        said=headlines.unknown_revision,
        runbook="unknown-revision",
        scope=FLEET,
        pods=lambda status: tuple(one.server for one in status.facts.unknown_revisions),
        subject=lambda status: Subject(kind="server", name=status.facts.unknown_revisions[0].server),
        test=lambda status: bool(status.facts.unknown_revisions),
        text=texts.unknown_revision,
        detail=texts.how_unknown,
    ),
    Rule[Due](
        key="soon",
        severity="warning",
        runbook="scheduled-change-failed",
        scope=EACH_SCHEDULED_CHANGE,
        test=lambda due: due.late_s <= OVERDUE_S or due.frozen,
        text=lambda due: due.change.title,
        detail=lambda due: (
            "It waits: edits are frozen."
            if due.frozen and due.late_s > 0
            else f"Automatically, at {moment(due.change.at)}."
        ),
    ),
    Rule[Status](
        key="uncounted",
        severity="warning",
        said=lambda _: headlines.UNCOUNTED,
        runbook="server-silent",
        scope=FLEET,
        value=texts.uncounted_share,
        text=lambda _: "Figures are incomplete: a gateway has just started",
        detail=lambda status: (
            f"{status.figures.uncounted} of"
            f" {max(status.figures.uncounted, status.figures.live_servers)} pods are missing from"
            " the rates until their second heartbeat, a few seconds from now."
        ),
    ),
)
