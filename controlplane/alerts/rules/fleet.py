"""Alerts about pods, their configuration, breakers, scheduled changes and refused requests."""

from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules import history_figures, texts
from controlplane.alerts.rules.promql import (
    IN_ENVIRONMENT,
    LIVE_PODS,
    LOCAL_PODS,
    NAMES_DEPENDENCY,
    REQUESTS,
    by_dependency,
    by_environment,
    share,
)
from controlplane.alerts.rules.rule import (
    EACH_BREAKER,
    FLEET,
    Headline,
    PrometheusQuery,
    Rule,
    Scope,
    Subject,
    Threshold,
    Timing,
    WarningOnly,
    jumping,
    seconds,
)
from controlplane.alerts.rules.thresholds import (
    LOCAL_SHARE,
    P99_WARN_PART,
    REFUSED_SHARE,
    REFUSED_SHARE_CRITICAL,
    UNCOUNTED_SHARE,
)
from controlplane.phrases import count, moment, name_or_count, percent, they
from controlplane.runbooks.shipped import FOR_DEPENDENCIES
from controlplane.status.breakers import CANNOT_OPEN, NEAR_CALLS, PHRASES, BreakerStatus
from controlplane.status.facts import ScheduledChange
from controlplane.status.servers import LAG_CRITICAL_S, LAG_WARN_S
from controlplane.status.status import Status
from fuseboard.contract.policy import Tuning

#: A change this late is applied neither by the worker nor by a web process in its place.
OVERDUE_S = 30.0
_DEADLINE_S = Tuning().store_deadline_us / 1_000_000
_REFUSED = 'fuseboard_fleet_refused_per_second{reason!="suspended"}'
#: The runbook of dependencies that name none.
GENERAL_RUNBOOK = FOR_DEPENDENCIES


@dataclass(frozen=True, kw_only=True)
class Due:
    """A scheduled change, and by how much it is late; negative while its time has not come."""

    change: ScheduledChange
    late_s: float
    #: Edits are frozen: it waits for the end of the freeze.
    frozen: bool = False


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


def _overdue(due: Due) -> Headline:
    change = due.change
    title = f"The end of quota {change.quota} of {change.tenant}" if change.tenant else change.title
    return Headline(title, "is", "overdue")


def _silent(status: Status) -> Headline | None:
    # Without a gateway, which another sentence names, every pod is silent.
    silent = status.fleet.silent
    return Headline.of_pods(silent, "is", "are", "silent") if status.facts.current else None


FLEET_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="429",
        describes="too many requests are refused",
        threshold=jumping(warning=REFUSED_SHARE, critical=REFUSED_SHARE_CRITICAL),
        value=texts.refused_share,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=120, resolves_after_s=300),
        scope=FLEET,
        idle=texts.few_requests,
        subject=texts.refused_tenant,
        text=lambda status: f"{percent(status.figures.refused_share)} of requests are refused",
        detail=texts.refused,
        headline=texts.refused_headline,
        # Customers feel it. A warning may be the quota of one tenant.
        weight=85,
        warning=WarningOnly(headline=texts.refused_headline, weight=165, dates_incident=2),
        dates_incident=2,
        handled="Requests over a limit are refused with the time until they can be sent again.",
        shareable=True,
        history=history_figures.REFUSED_SHARE,
        prometheus=PrometheusQuery(
            place=10,
            promql=f"{share(_REFUSED, REQUESTS)} >",
            summary="{{ $value | humanizePercentage }} of the requests are refused " + IN_ENVIRONMENT,
        ),
        runbook="too-many-429s",
    ),
    Rule[Status](
        key="ahead",
        describes="Redis or a pod has a revision that Postgres does not have",
        severity="critical",
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        needs_gateway=False,
        scope=FLEET,
        test=lambda status: bool(status.facts.ahead),
        subject=lambda _: Subject(kind="configuration"),
        text=lambda _: "Edits are not published: Postgres was restored",
        detail=lambda status: f"{status.facts.ahead}, which Postgres does not have. Start a new epoch.",
        headline=lambda _: Headline("Edits", "are", "not published"),
        weight=40,
        dates_incident=1,
        handled="Pods keep the last configuration that they applied.",
        explains=("lag", "outbox", "unknown-revision"),
        shareable=True,
        runbook="postgres-restored",
    ),
    Rule[Status](
        key="drill",
        describes="pods take part in a drill",
        severity="warning",
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=10),
        scope=FLEET,
        test=lambda status: bool(status.fleet.drill),
        pods=lambda status: status.fleet.drill,
        since=lambda status: status.fleet.drill_since,
        text=lambda status: f"{count(len(status.fleet.drill), 'pod')} in a drill",
        detail=lambda status: (
            f"{they(status.fleet.drill, 'It simulates', 'They simulate')} a slow or unreachable Redis"
            " until the drill ends."
        ),
        headline=lambda status: Headline.of_pods(status.fleet.drill, "is", "are", "in a drill"),
        weight=400,
        runbook="drill",
    ),
    Rule[Status](
        key="duplicated",
        describes="two processes report under one name",
        severity="warning",
        timing=Timing(level=1, fires_after_s=30, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: bool(status.facts.duplicated),
        pods=lambda status: status.facts.duplicated,
        subject=lambda status: Subject(kind="server", name=status.facts.duplicated[0]),
        text=lambda status: f"Two processes report as {name_or_count(status.facts.duplicated)}",
        detail=lambda _: "Each process counts as a pod, but the figures of one of the two are missing.",
        headline=lambda status: Headline(
            "Two processes", "report", f"as {name_or_count(status.facts.duplicated)}"
        ),
        weight=510,
        runbook="server-silent",
    ),
    Rule[Status](
        key="frozen",
        describes="many pods went silent at once",
        severity="warning",
        timing=Timing(level=2, fires_after_s=10, resolves_after_s=30),
        scope=FLEET,
        test=lambda status: status.figures.frozen,
        text=lambda _: "Many pods went silent at once",
        detail=lambda status: texts.why_frozen(status.figures),
        headline=lambda _: Headline("Many pods", "went", "silent at once"),
        weight=130,
        dates_incident=1,
        handled="No pod is marked offline until gateways hear pods again.",
        explains=("lag", "silent", "uncounted"),
        shareable=True,
        prometheus=PrometheusQuery(
            place=60,
            promql=by_environment("fuseboard_fleet_frozen") + " == 1",
            summary="Many pods went silent at once " + IN_ENVIRONMENT,
        ),
        runbook="server-silent",
    ),
    Rule[BreakerStatus](
        key="override",
        describes="an override keeps a breaker from opening",
        severity="warning",
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=10),
        needs_gateway=False,
        scope=EACH_BREAKER,
        test=lambda breaker: breaker.effective in CANNOT_OPEN,
        since=lambda breaker: breaker.since,
        text=lambda breaker: f"{breaker.name} is {PHRASES[breaker.effective]}",
        detail=lambda _: "It cannot open during the override. Check that the dependency bears the load.",
        shareable=True,
        prometheus=PrometheusQuery(
            place=120,
            promql="max by (environment) (sum without (mode)"
            ' (fuseboard_breakers_held{mode=~"forced_closed|metrics_only|disabled"})) > 0',
            summary="{{ $value }} breakers cannot open during their override " + IN_ENVIRONMENT,
        ),
        runbook="breaker-held-by-hand",
    ),
    Rule[Status](
        key="lag",
        describes="pods have not applied an edit",
        # Below two heartbeats, a lag says nothing.
        threshold=seconds(warning=LAG_WARN_S, critical=LAG_CRITICAL_S, least=LAG_WARN_S),
        value=lambda status: status.fleet.worst_lag_s,
        timing=Timing(level=1, fires_after_s=10, resolves_after_s=30),
        scope=FLEET,
        test=lambda status: bool(status.fleet.lagging),
        pods=lambda status: status.fleet.lagging,
        since=lambda status: status.fleet.lagging_since,
        text=texts.lag,
        detail=texts.missing_edits,
        headline=lambda status: Headline.of_pods(status.fleet.lagging, "has", "have", "old configuration"),
        weight=210,
        dates_incident=1,
        handled="The answer to each heartbeat names the newest revision, so that pods fetch it.",
        refreshes_pods=True,
        explains=("divided",),
        prometheus=PrometheusQuery(
            place=70,
            promql=by_environment("fuseboard_config_lag_seconds") + " >",
            summary="Pods have not applied an edit since {{ $value | humanizeDuration }} " + IN_ENVIRONMENT,
        ),
        runbook="configuration-lag",
    ),
    Rule[Status](
        key="local",
        describes="pods decide locally",
        # Pods on local fallback: more than this number, or more than this share of the live pods,
        # is critical.
        threshold=Threshold(warning=0, critical=3, unit="pods", scale=1.0, most=100_000, whole=True),
        value=texts.local_pods,
        drawn=lambda status: len(status.fleet.local),
        timing=Timing(level=2, fires_after_s=10, resolves_after_s=30),
        scope=FLEET,
        pods=lambda status: status.fleet.local,
        since=lambda status: status.fleet.local_since,
        text=texts.local,
        detail=texts.approximate_limits,
        # The headline of "all-local" says it.
        headline=lambda status: None if texts.all_local(status) else texts.local_headline(status),
        weight=150,
        dates_incident=1,
        handled="These pods decide with local limits. They return to Redis automatically.",
        explains=("check-errors", "divided", "lock-failures", "p99"),
        history=history_figures.LOCAL_PODS,
        prometheus=PrometheusQuery(
            place=80,
            promql=f"{LOCAL_PODS} >",
            summary="{{ $value }} pods decide locally " + IN_ENVIRONMENT,
            or_critical=f"{LOCAL_PODS} > {LOCAL_SHARE:g} * {LIVE_PODS}",
        ),
        runbook="redis-unreachable",
    ),
    Rule[Status](
        key="new-pods",
        describes="new pods are refused, because their token brought too many names",
        severity="warning",
        timing=Timing(level=2, fires_after_s=30, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: status.figures.new_pods_refused > 0,
        text=lambda _: "New pods are refused",
        detail=lambda status: (
            f"{count(status.figures.new_pods_refused, 'heartbeat')} within a minute, because a token"
            " brought too many new names. These pods decide with Redis, but are not displayed."
        ),
        headline=lambda _: Headline("New pods", "are", "refused"),
        weight=490,
        shareable=True,
        runbook="new-pods-refused",
    ),
    Rule[BreakerStatus](
        key="near",
        describes="a breaker is near its threshold",
        severity="warning",
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=120),
        scope=EACH_BREAKER,
        test=lambda breaker: breaker.near,
        idle=lambda breaker: breaker.effective == "closed" and breaker.calls < NEAR_CALLS,
        text=lambda breaker: f"{breaker.name} is near its threshold",
        detail=lambda breaker: (
            f"{texts.failed(breaker)}; the breaker opens at {breaker.dependency.failure_percent} %."
        ),
        headline=lambda breaker: Headline(breaker.name, "is", "near its threshold"),
        weight=530,
        handled="The breaker opens automatically at its threshold.",
        shareable=True,
        runbook=GENERAL_RUNBOOK,
        own_runbook=lambda breaker: breaker.dependency.runbook,
    ),
    Rule[BreakerStatus](
        key="open",
        describes="a breaker is open",
        severity="critical",
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        scope=EACH_BREAKER,
        test=lambda breaker: breaker.effective == "open",
        since=lambda breaker: breaker.since,
        text=lambda breaker: f"{breaker.name} is open",
        detail=lambda breaker: (
            f"{texts.opened(breaker)}. Callers get: {breaker.dependency.fallback}."
            if breaker.dependency.fallback
            else f"{texts.opened(breaker)}."
        ),
        handled="Calls are refused, or get the fallback if there is one. The breaker tests the dependency.",
        explains=("backlog-full", "bulkhead", "bulkhead-queue", "near", "open-share", "retry-budget"),
        shareable=True,
        prometheus=PrometheusQuery(
            place=90,
            promql=by_dependency("fuseboard_breaker_state") + " == 1",
            summary="The breaker is open: " + NAMES_DEPENDENCY,
        ),
        runbook=GENERAL_RUNBOOK,
        own_runbook=lambda breaker: breaker.dependency.runbook,
    ),
    Rule[Due](
        key="overdue",
        describes="a scheduled change was not made in time",
        threshold=seconds(critical=OVERDUE_S, least=10.0),
        value=lambda due: due.late_s,
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=30),
        needs_gateway=False,
        scope=EACH_SCHEDULED_CHANGE,
        test=lambda due: not due.frozen,
        since=lambda due: due.change.at,
        text=lambda due: f"Overdue: {due.change.title[0].lower()}{due.change.title[1:]}",
        detail=lambda due: f"It was due at {moment(due.change.at)}. Check that the worker is running.",
        headline=_overdue,
        weight=225,
        handled="Web makes the change if no worker does.",
        runbook="scheduled-change-failed",
    ),
    Rule[Status](
        key="p99",
        describes="Redis answers more slowly than usual, or than its deadline",
        threshold=jumping(warning=P99_WARN_PART, critical=1.0, unit="% of the deadline", most=20.0),
        value=texts.p99_part,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=120),
        scope=FLEET,
        idle=lambda status: status.figures.store.p99_us is None,
        text=texts.slow_redis,
        detail=texts.slow_redis_detail,
        headline=texts.redis_at_deadline_headline,
        # An idle machine exceeds it for seconds, and nothing is wrong.
        warning=WarningOnly(headline=texts.redis_slower_headline, weight=520, lasting_s=60.0),
        weight=160,
        dates_incident=1,
        handled="A call whose answer is late is decided with local limits.",
        shareable=True,
        history=history_figures.P99_PART,
        prometheus=PrometheusQuery(
            place=130,
            promql=by_environment("fuseboard_fleet_redis_p99_seconds") + " >",
            summary="Redis p99 is {{ $value | humanizeDuration }} " + IN_ENVIRONMENT,
            scale=_DEADLINE_S,
        ),
        runbook="redis-slow",
    ),
    Rule[Status](
        key="rejected",
        describes="pods rejected the configuration",
        severity="critical",
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: bool(status.fleet.rejected),
        pods=lambda status: status.fleet.rejected,
        text=lambda status: f"{name_or_count(status.fleet.rejected)} rejected the configuration",
        detail=lambda status: (
            f"{they(status.fleet.rejected, 'It keeps', 'They keep')} the last valid configuration."
            " The error is in the pod\u2019s row."
        ),
        headline=lambda status: Headline.of_pods(
            status.fleet.rejected, "rejected", "rejected", "the configuration"
        ),
        weight=90,
        dates_incident=1,
        handled="Pods that rejected it keep the configuration before it.",
        explains=("lag",),
        prometheus=PrometheusQuery(
            place=180,
            promql=by_environment("fuseboard_config_rejected_pods") + " > 0",
            summary="{{ $value }} pods rejected the configuration " + IN_ENVIRONMENT,
        ),
        runbook="configuration-lag",
    ),
    Rule[Status](
        key="schedules",
        describes="a scheduled change failed",
        severity="critical",
        timing=Timing(level=2, fires_after_s=0, resolves_after_s=10),
        needs_gateway=False,
        scope=FLEET,
        test=lambda status: status.facts.schedules_failed > 0,
        subject=lambda _: Subject(kind="schedules"),
        text=lambda status: f"{count(status.facts.schedules_failed, 'scheduled change')} failed",
        detail=lambda _: "Nothing was changed. Make the change by hand, or schedule it again.",
        headline=lambda status: Headline(
            count(status.facts.schedules_failed, "scheduled change"), "", "failed"
        ),
        weight=224,
        shareable=True,
        runbook="scheduled-change-failed",
    ),
    Rule[Status](
        key="silent",
        describes="a pod sends no heartbeats",
        severity="warning",
        timing=Timing(level=1, fires_after_s=30, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: bool(status.fleet.silent),
        pods=lambda status: status.fleet.silent,
        since=lambda status: status.fleet.silent_since,
        text=lambda status: f"No heartbeat from {name_or_count(status.fleet.silent)}",
        detail=lambda status: (
            f"{they(status.fleet.silent, 'It', 'They')} may have stopped, or may be cut off from the"
            " control plane and still decide calls."
        ),
        headline=_silent,
        weight=140,
        dates_incident=1,
        prometheus=PrometheusQuery(
            place=200,
            promql="max by (environment) (sum without (state, mode)"
            ' (fuseboard_fleet_servers{state=~"unknown|offline"})) > 0',
            summary="{{ $value }} pods send no heartbeats " + IN_ENVIRONMENT,
        ),
        runbook="server-silent",
    ),
    Rule[Status](
        key="unknown-revision",
        describes="a pod reports a revision that Postgres never made",
        severity="critical",
        timing=Timing(level=2, fires_after_s=30, resolves_after_s=60),
        scope=FLEET,
        test=lambda status: bool(status.facts.unknown_revisions),
        pods=lambda status: tuple(one.server for one in status.facts.unknown_revisions),
        subject=lambda status: Subject(kind="server", name=status.facts.unknown_revisions[0].server),
        text=texts.unknown_revision,
        detail=texts.how_unknown,
        headline=texts.unknown_revision_headline,
        weight=100,
        prometheus=PrometheusQuery(
            place=220,
            promql="sum by (environment) (fuseboard_fleet_unknown_revisions) > 0",
            summary="{{ $value }} pods report a revision that Postgres never made " + IN_ENVIRONMENT,
        ),
        runbook="unknown-revision",
    ),
    Rule[Due](
        key="soon",
        describes="a scheduled change is due soon",
        severity="warning",
        timing=Timing(level=1, fires_after_s=0, resolves_after_s=60),
        alerts=False,
        scope=EACH_SCHEDULED_CHANGE,
        test=lambda due: due.late_s <= OVERDUE_S or due.frozen,
        text=lambda due: due.change.title,
        detail=lambda due: (
            "It waits: edits are frozen."
            if due.frozen and due.late_s > 0
            else f"Automatically, at {moment(due.change.at)}."
        ),
        runbook="scheduled-change-failed",
    ),
    Rule[Status](
        key="uncounted",
        describes="figures of many pods are missing",
        threshold=jumping(warning=UNCOUNTED_SHARE),
        value=texts.uncounted_share,
        timing=Timing(level=1, fires_after_s=30, resolves_after_s=60),
        scope=FLEET,
        text=lambda _: "Figures are incomplete: a gateway has just started",
        detail=lambda status: (
            f"{status.figures.uncounted} of"
            f" {max(status.figures.uncounted, status.figures.live_servers)} pods are missing from"
            " the rates until their second heartbeat, a few seconds from now."
        ),
        headline=lambda status: (
            Headline("The figures", "are", "incomplete") if status.facts.current else None
        ),
        weight=550,
        shareable=True,
        runbook="server-silent",
    ),
)
