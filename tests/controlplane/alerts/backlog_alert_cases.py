"""Cases of the rules about backlogs, as in ``test_alert_rules``."""

from typing import Any

from msgspec.structs import replace

from controlplane.backlogs.figures import BacklogSeen
from controlplane.status.facts import Facts
from fuseboard.contract.backlog_figures import BacklogFigures
from tests.controlplane.alerts.alert_facts import NOW, OPEN, facts, override, pod

NOTHING = BacklogFigures(*[0] * len(BacklogFigures.__struct_fields__))
NOW_US = 1_795_144_367_000_000


def seen(*, read_at: float = NOW, dependency: str = "payments-api", **fields: int) -> BacklogSeen:
    usual = {"now": NOW_US, "max_jobs": 1000, "max_bytes": 2 << 20}
    return BacklogSeen(
        dependency=dependency, read_at=read_at, figures=replace(NOTHING, **{**usual, **fields})
    )


def backlog(*pods: Any, read_at: float = NOW, **fields: int) -> Facts:
    return facts(*pods, backlogs=(seen(read_at=read_at, **fields),))


def unasked(seconds: int) -> dict[str, int]:
    """Jobs are ready, and for this long no worker has asked."""
    return {"ready": 3, "late_us": 300_000_000, "asked_us": NOW_US - seconds * 1_000_000}


THRESHOLDS = "More than 80 % is a warning, more than 99 % is critical."
BACKLOG_CASES: list[tuple[tuple[str, str], Facts, str, Facts]] = [
    (
        ("backlog-dead", "warning"),
        backlog(dead=2),
        "2 jobs of the backlog of payments-api are dead. No worker gets a dead job until an operator returns"
        " it to the queue. It is kept for 7 days.",
        backlog(ready=2),
    ),
    (
        ("backlog-full", "critical"),
        backlog(pod(view=OPEN), ready=900, delayed=60, leased=40, bytes=4096),
        "The backlog of payments-api is 100 % full. 1,000 of 1,000 jobs, 4 KiB of 2 MiB. A full backlog"
        f" refuses further jobs. Its breaker lets no job through. {THRESHOLDS}",
        backlog(ready=990),
    ),
    (
        ("backlog-full", "warning"),
        backlog(ready=1, bytes=1_800_000),
        "The backlog of payments-api is 85 % full. 1 of 1,000 jobs, 1.72 MiB of 2 MiB. A full backlog refuses"
        f" further jobs. {THRESHOLDS}",
        backlog(ready=800),
    ),
    (
        ("backlog-untaken", "warning"),
        backlog(**unasked(61)),
        "No worker takes jobs of payments-api. 3 jobs could be taken, no worker has a job, and none has asked"
        " for 61 s.",
        backlog(**unasked(60)),
    ),
    (
        ("backlog-untaken", "warning"),
        # Of a worker that died: its lease has ended.
        backlog(leased=1, **unasked(70)),
        "No worker takes jobs of payments-api. 4 jobs could be taken, no worker has a job, and none has asked"
        " for 70 s.",
        # Workers that all have a job do not ask.
        backlog(leased=1, held=1, **unasked(600)),
    ),
    (
        ("backlog-untaken", "warning"),
        backlog(ready=1, late_us=90_000_000),
        "No worker takes jobs of payments-api. 1 job could be taken, no worker has a job, and none has asked"
        " for 90 s.",
        # Workers that know that the breaker is open do not ask.
        backlog(pod(view=OPEN), ready=1, late_us=90_000_000),
    ),
    (
        ("backlog-untaken", "warning"),
        # All workers died with the only jobs, or before the only one was due.
        backlog(leased=1, delayed=2, due=1, late_us=90_000_000, asked_us=NOW_US - 120_000_000),
        "No worker takes jobs of payments-api. 2 jobs could be taken, no worker has a job, and none has asked"
        " for 90 s.",
        backlog(delayed=2, asked_us=NOW_US - 120_000_000),
    ),
    (
        ("backlog-untaken", "warning"),
        backlog(**unasked(600)),
        "No worker takes jobs of payments-api. 3 jobs could be taken, no worker has a job, and none has asked"
        " for 300 s.",
        facts(override=override("forced_open"), backlogs=(seen(**unasked(600)),)),
    ),
    (
        ("backlog-untaken", "warning"),
        backlog(read_at=NOW - 30, **unasked(600)),
        "No worker takes jobs of payments-api. 3 jobs could be taken, no worker has a job, and none has asked"
        " for 300 s.",
        # Older figures do not know.
        backlog(read_at=NOW - 31, **unasked(600)),
    ),
]
