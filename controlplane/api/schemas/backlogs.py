"""Requests and responses about backlogs."""

from datetime import datetime
from typing import Annotated

from ninja import Schema
from pydantic import Field

from controlplane.api.schemas import FromObject, UnixTime
from controlplane.api.schemas.edits_in import Moment, Reason, Strict
from controlplane.backlogs.dead_jobs import Changed
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
    #: Seconds that the job that comes next has waited.
    wait_s: float
    #: Seconds since a worker last asked; null for never.
    asked_s: float | None
    #: Jobs per second over 30 s; null until they are known.
    submitted_per_s: float | None
    done_per_s: float | None
    refused_per_s: float | None


class DeadJobOut(Schema):
    id: str
    died_at: UnixTime
    submitted_at: UnixTime
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


class DeadJobsChangedOut(FromObject):
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

    @staticmethod
    def resolve_jobs(changed: Changed) -> int:
        return changed.number
