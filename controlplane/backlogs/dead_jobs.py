"""The dead jobs of one backlog, read from Redis and changed there. Payloads never leave it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from controlplane.backlogs.scripts import DEAD, keys_of
from controlplane.redis.scripts import PATIENT_S, PROMPT_S, limits
from fuseboard.contract import keys

#: The newest are listed.
MAX_LISTED = 50
#: Jobs of one call of the script, which may not block Redis for long.
_AT_ONCE = 100
#: The script keeps 1,000 at most; more calls mean that jobs die meanwhile.
_MAX_CALLS = 20
_LIST, RETURN, DELETE = 1, 2, 3
#: The result "cancelled" of a deleted job is kept for this time.
RESULT_US = 3600 * 1_000_000


@dataclass(frozen=True, kw_only=True)
class DeadJob:
    id: str
    #: In unix seconds, by the clock of Redis.
    died_at: float
    submitted_at: float
    tries: int
    max_tries: int
    priority: int
    #: The size of the payload.
    bytes: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class DeadJobs:
    """The newest first; ``number`` counts those that are not listed too."""

    number: int
    listed: tuple[DeadJob, ...]
    #: The clock of Redis: those that die later are not in it.
    now_us: int


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The result of an operator's change."""

    number: int
    #: Dead now.
    left: int
    #: It stopped because the queue is full.
    full: bool
    #: Redis did not answer a part of it: those jobs may be changed or not.
    unknown: bool = False
    #: Jobs that could not be read, and were removed.
    unreadable: int = 0

    def as_audit(self) -> dict[str, int]:
        unusual = {"unknown": self.unknown, "full": self.full, "unreadable": self.unreadable}
        document = {"jobs": self.number, "left": self.left}
        return document | {name: value for name, value in unusual.items() if value}


def read_dead(environment: str, dependency: str) -> DeadJobs:
    """Raises ``redis.RedisError``."""
    answer = _run(limits(deadline_s=PROMPT_S), environment, dependency, _LIST, most=MAX_LISTED, until_us=0)
    _, number, _, now, rows, _ = answer
    return DeadJobs(number=int(number), listed=tuple(_listed(rows)), now_us=now)


def change_dead(environment: str, dependency: str, what: int, *, until_us: int) -> Changed:
    """Return or delete those that died until then, the oldest first. Raises ``redis.RedisError``.

    A job that is returned and dies again meanwhile is not returned twice: it died later.
    """
    store = limits(deadline_s=PATIENT_S)
    number, left, full, unreadable = 0, 0, False, 0
    for call in range(_MAX_CALLS):
        try:
            changed, left, full, _, _, lost = _run(
                store, environment, dependency, what, most=_AT_ONCE, until_us=until_us
            )
        except redis.RedisError:
            if call == 0:
                raise
            return Changed(number=number, left=left, full=False, unknown=True, unreadable=unreadable)
        number, unreadable = number + changed, unreadable + lost
        if full or changed + lost < _AT_ONCE:
            break
    return Changed(number=number, left=left, full=bool(full), unreadable=unreadable)


def _run(
    store: redis.Redis, environment: str, dependency: str, what: int, *, most: int, until_us: int
) -> Any:
    return DEAD.run(
        store,
        keys=keys_of(environment, dependency),
        args=[what, most, until_us, RESULT_US, keys.backlog_channel(environment), dependency],
    )


def _listed(rows: list[list[Any]]) -> Iterator[DeadJob]:
    for job_id, died, submitted, tries, max_tries, priority, size, cause in reversed(rows):
        yield DeadJob(
            id=job_id,
            died_at=died / 1e6,
            submitted_at=submitted / 1e6,
            tries=tries,
            max_tries=max_tries,
            priority=priority,
            bytes=size,
            cause=cause,
        )
