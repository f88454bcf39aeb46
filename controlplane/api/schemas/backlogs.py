"""Requests and responses about backlogs."""

from datetime import datetime
from typing import Annotated, Any

from ninja import Schema
from pydantic import Field

from controlplane.api.schemas.edits_in import Moment, Reason, Strict
from controlplane.status.backlogs import BacklogState


class BacklogOut(Schema):
    dependency: str
    #: The first that is true: the figures are old; submits are refused; jobs could be taken and no worker
    #: asks; the breaker is open; a limit of 0 pauses it; workers have jobs; jobs wait; only dead jobs; empty.
    state: BacklogState
    read_at: datetime
    ready: int
    delayed: int
    #: With workers, or with one that died: such a job is handed out again when a worker asks.
    leased: int
    dead: int
    #: Payloads, those of dead jobs included.
    bytes: int
    #: Bounds of ready, delayed and leased jobs together, and of bytes.
    max_jobs: int
    max_bytes: int
    #: The part of a bound that is used, from 0 to 1.
    used: float
    #: For how long the job that comes next has waited, in seconds.
    wait_s: float
    #: Seconds since a worker last asked; null for never.
    asked_s: float | None
    #: Jobs per second over 30 s; null until they are known.
    submitted_per_s: float | None
    done_per_s: float | None
    refused_per_s: float | None


class DeadJobOut(Schema):
    id: str
    died_at: datetime
    submitted_at: datetime
    tries: int
    max_tries: int
    priority: int
    #: Size of the payload. The payload itself is never returned.
    bytes: int
    cause: str


class DeadJobsOut(Schema):
    """The newest dead jobs."""

    #: All of them, also those that are not listed.
    number: int
    #: By the clock of Redis: pass it as ``until``.
    now: datetime
    items: list[DeadJobOut]


class DeadJobsIn(Strict):
    reason: Reason
    until: Annotated[
        Moment | None,
        Field(description="Only jobs that died until then, by the clock of Redis; null for all."),
    ] = None


class DeadJobsChangedOut(Schema):
    #: Jobs that were changed.
    jobs: int
    #: Jobs that are dead now.
    left: int
    #: It stopped because the queue is full.
    full: bool
    #: Redis did not answer a part of it: read the list again.
    unknown: bool
    #: Jobs that could not be read. They are removed, and count in no other number.
    unreadable: int


_JOB = {
    "id": "charge-4711",
    "died_at": "2026-11-23T09:32:03.412Z",
    "submitted_at": "2026-11-23T09:12:00Z",
    "tries": 5,
    "max_tries": 5,
    "priority": 8,
    "bytes": 412,
    "cause": "CardError",
}
BACKLOG_EXAMPLES: dict[str, Any] = {
    "BacklogOut": {
        "dependency": "payments-api",
        "state": "working",
        "read_at": "2026-11-23T09:32:03.412Z",
        "ready": 1204,
        "delayed": 12,
        "leased": 8,
        "dead": 1,
        "bytes": 501_204,
        "max_jobs": 10_000,
        "max_bytes": 67_108_864,
        "used": 0.1224,
        "wait_s": 48.2,
        "asked_s": 0.3,
        "submitted_per_s": 22.5,
        "done_per_s": 20.0,
        "refused_per_s": 0.0,
    },
    "DeadJobsOut": {"number": 1, "now": "2026-11-23T09:40:00Z", "items": [_JOB]},
    "DeadJobOut": _JOB,
    "DeadJobsIn": {"reason": "The vendor is back, see INC-17", "until": "2026-11-23T09:40:00Z"},
    "DeadJobsChangedOut": {"jobs": 1, "left": 0, "full": False, "unknown": False, "unreadable": 0},
}
