from datetime import UTC, datetime

from django.http import HttpRequest
from ninja import Router

from controlplane.api.schemas.edits_in import Environment
from controlplane.api.schemas.locks_out import HeldLockOut, LocksOut, PodLocksOut
from controlplane.policies.document import environment_of
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of

router = Router()


@router.get("", response=LocksOut)
def list_locks(request: HttpRequest, environment: Environment) -> LocksOut:
    """Who holds which lock, and what became of locks, and of idempotent work, in the last 10 minutes."""
    found = status_of(read_facts(environment_of(environment).slug)).locks
    return LocksOut(
        held=[
            HeldLockOut(
                name=lock.name,
                pod=lock.pod,
                service=lock.service,
                since=datetime.fromtimestamp(lock.since, UTC),
                held_s=round(lock.held_s, 3),
            )
            for lock in found.held
        ],
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
