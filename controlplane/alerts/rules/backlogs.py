"""Alert rules about backlogs: how full they are, dead jobs, and whether a worker takes jobs."""

from typing import Any

from controlplane.alerts.rules import headlines
from controlplane.alerts.rules.rule import BOTH, Rule, Scope, Subject
from controlplane.phrases import count, is_or_are, size
from controlplane.status.backlogs import BacklogStatus

EACH_BACKLOG = Scope[BacklogStatus](
    each=lambda status: status.backlogs,
    key=lambda backlog: backlog.name,
    subject=lambda backlog: Subject(kind="breaker", name=backlog.name),
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
        severity="warning",
        said=headlines.dead_jobs,
        runbook="backlog-dead-jobs",
        scope=EACH_BACKLOG,
        value=lambda backlog: backlog.seen.figures.dead,
        text=lambda backlog: (
            f"{count(backlog.seen.figures.dead, 'job')} of the backlog of {backlog.name}"
            f" {is_or_are(backlog.seen.figures.dead)} dead"
        ),
        detail=lambda _: (
            "No worker gets a dead job until an operator returns it to the queue. It is kept for 7 days."
        ),
    ),
    *(
        Rule[BacklogStatus](
            key="backlog-full",
            severity=severity,
            said=headlines.backlog_full,
            runbook="backlog-full",
            scope=EACH_BACKLOG,
            value=lambda backlog: backlog.share,
            names_thresholds=True,
            text=lambda backlog: f"The backlog of {backlog.name} is {int(backlog.share * 100)} % full",
            detail=_why_full,
        )
        for severity in BOTH
    ),
    Rule[BacklogStatus](
        key="backlog-untaken",
        severity="warning",
        said=headlines.untaken,
        runbook="backlog-untaken",
        scope=EACH_BACKLOG,
        value=lambda backlog: backlog.untaken_s,
        text=lambda backlog: f"No worker takes jobs of {backlog.name}",
        detail=lambda backlog: (
            f"{count(backlog.seen.figures.takeable, 'job')} could be taken, no worker has a job, and"
            f" none has asked for {backlog.untaken_s:.0f} s."
        ),
    ),
)
