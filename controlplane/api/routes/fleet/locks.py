from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.api.schemas import FromObject, UnixTime
from controlplane.api.schemas.edits_in import Environment
from controlplane.policies.document import environment_of
from controlplane.status.locks import HeldLock
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of

router = Router()


class HeldLockOut(FromObject):
    #: At most 64 characters of it.
    name: str
    pod: str
    service: str
    since: UnixTime
    held_s: float

    @staticmethod
    def resolve_held_s(lock: HeldLock) -> float:
        return round(lock.held_s, 3)


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


@router.get("", response=LocksOut)
def list_locks(request: HttpRequest, environment: Environment) -> LocksOut:
    """Who holds which lock, and what became of locks, and of idempotent work, in the last 10 minutes."""
    found = status_of(read_facts(environment_of(environment).slug)).locks
    return LocksOut(
        held=[HeldLockOut.model_validate(lock) for lock in found.held],
        holding=found.holding,
        longest_s=round(found.longest_s, 3),
        locks=dict(found.locks),
        once=dict(found.once),
        pods=[
            PodLocksOut(
                pod=pod.name,
                service=pod.service,
                holding=one.holding,
                locks=dict(one.locks),
                once=dict(one.once),
            )
            for pod, one in found.pods
        ],
        not_reporting=list(found.without),
    )
