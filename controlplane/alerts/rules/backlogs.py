"""Alert rules about backlogs: how full they are, dead jobs, and whether a worker takes jobs."""

from typing import Any

from controlplane.alerts.rules.promql import NAMES_DEPENDENCY, by_dependency
from controlplane.alerts.rules.rule import (
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
from controlplane.alerts.rules.thresholds import BACKLOG_SHARE
from controlplane.phrases import count, is_or_are, size
from controlplane.status.backlogs import BacklogStatus

EACH_BACKLOG = Scope[BacklogStatus](
    each=lambda status: status.backlogs,
    key=lambda backlog: backlog.name,
    subject=lambda backlog: Subject(kind="breaker", name=backlog.name),
    about="dependency",
    unseen=lambda status: [one.name for one in status.backlogs if not one.fresh],
)


def _why_full(backlog: BacklogStatus) -> str:
    seen = backlog.seen
    jobs = f"{seen.figures.jobs:,} of {seen.max_jobs:,} jobs, {size(seen.figures.bytes)} of"
    stopped = " Its breaker lets no job through." if backlog.stopped else ""
    if backlog.paused:
        stopped += " A limit of 0 pauses it."
    return f"{jobs} {size(seen.max_bytes)}. A full backlog refuses further jobs.{stopped}"


BACKLOG_RULES: tuple[Rule[Any], ...] = (
    Rule[BacklogStatus](
        key="backlog-dead",
        describes="a backlog has dead jobs",
        threshold=Threshold(warning=0, unit="jobs", scale=1.0, most=1_000, whole=True),
        value=lambda backlog: backlog.seen.figures.dead,
        timing=Timing(level=2, fires_after_s=30, resolves_after_s=60),
        needs_gateway=False,
        escalates=False,
        scope=EACH_BACKLOG,
        text=lambda backlog: (
            f"{count(backlog.seen.figures.dead, 'job')} of the backlog of {backlog.name}"
            f" {is_or_are(backlog.seen.figures.dead)} dead"
        ),
        detail=lambda _: (
            "No worker gets a dead job until an operator returns it to the queue. It is kept for 7 days."
        ),
        headline=lambda backlog: Headline(
            f"{count(backlog.seen.figures.dead, 'job')} of {backlog.name}",
            is_or_are(backlog.seen.figures.dead),
            "dead",
        ),
        weight=460,
        handled="Dead jobs are kept for 7 days, at most 1,000 of a dependency.",
        prometheus=PrometheusQuery(
            place=240,
            promql=by_dependency('fuseboard_backlog_jobs{state="dead"}') + " >",
            summary="{{ $value }} jobs of the backlog are dead: " + NAMES_DEPENDENCY,
        ),
        runbook="backlog-dead-jobs",
    ),
    Rule[BacklogStatus](
        key="backlog-full",
        describes="a backlog is nearly full",
        threshold=jumping(warning=BACKLOG_SHARE, critical=0.99),
        value=lambda backlog: backlog.share,
        names_thresholds=True,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=120),
        needs_gateway=False,
        scope=EACH_BACKLOG,
        text=lambda backlog: f"The backlog of {backlog.name} is {int(backlog.share * 100)} % full",
        detail=_why_full,
        headline=lambda backlog: Headline(f"The backlog of {backlog.name}", "is", "nearly full"),
        weight=300,
        handled="A full backlog refuses further jobs. Those in it are handed out as limits admit them.",
        prometheus=PrometheusQuery(
            place=250,
            promql=by_dependency("fuseboard_backlog_used_ratio") + " >",
            summary="The backlog is {{ $value | humanizePercentage }} full: " + NAMES_DEPENDENCY,
        ),
        runbook="backlog-full",
    ),
    Rule[BacklogStatus](
        key="backlog-untaken",
        describes="a backlog has jobs, and no worker takes them",
        # A job is ready for longer than this while no worker asks: an idle worker asks about once per
        # second.
        threshold=seconds(warning=60.0, least=10.0),
        value=lambda backlog: backlog.untaken_s,
        timing=Timing(level=2, fires_after_s=10, resolves_after_s=60),
        scope=EACH_BACKLOG,
        text=lambda backlog: f"No worker takes jobs of {backlog.name}",
        detail=lambda backlog: (
            f"{count(backlog.seen.figures.takeable, 'job')} could be taken, no worker has a job, and"
            f" none has asked for {backlog.untaken_s:.0f} s."
        ),
        headline=lambda backlog: Headline("No worker", "takes", f"jobs of {backlog.name}"),
        weight=310,
        handled="Jobs stay in the backlog until a worker asks.",
        explains=("backlog-full",),
        prometheus=PrometheusQuery(
            place=260,
            promql=by_dependency("fuseboard_backlog_untaken_seconds") + " >",
            summary="No worker takes jobs for {{ $value | humanizeDuration }}: " + NAMES_DEPENDENCY,
        ),
        runbook="backlog-untaken",
    ),
)
