"""Responses about locks, and about work that must not be done twice."""

from datetime import datetime

from ninja import Schema


class HeldLockOut(Schema):
    #: At most 64 characters of it.
    name: str
    pod: str
    service: str
    since: datetime
    held_s: float


class PodLocksOut(Schema):
    pod: str
    service: str
    #: Locks that it holds now.
    holding: int
    #: Counts of the last 10 minutes, no zeros: acquired, waited (of these, after a wait), taken (by another
    #: process for the whole wait), lost, unavailable (no answer of Redis), unreleased, long_held (over 60 s),
    #: waited_ms and held_ms.
    locks: dict[str, int]
    #: Requests with an Idempotency-Key and blocks of agent.once, likewise: begun, replayed (done before),
    #: running (409), mismatched (422), lost, unavailable, unsealed (no key opens the kept answer).
    once: dict[str, int]


class LocksOut(Schema):
    #: The locks that each pod holds longest, at most 5, held for 1 s or longer; the longest first.
    held: list[HeldLockOut]
    #: All locks that pods hold, and for how long the longest is held.
    holding: int
    longest_s: float
    #: The sums over all pods.
    locks: dict[str, int]
    once: dict[str, int]
    #: Pods that use locks or idempotency, those with failures first.
    pods: list[PodLocksOut]
    #: Pods whose agent is too old to report locks.
    not_reporting: list[str]
