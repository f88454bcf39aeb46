"""Reports of requests that pods allowed without Redis, and of those over the limits."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router, Schema

from controlplane.api.schemas import FromObject
from controlplane.api.schemas.edits_in import Environment
from controlplane.api.time_range import Since, Until, range_of
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.reconciliation.outages import outages
from controlplane.reconciliation.report import LONGEST, Line, Report, reconciled

router = Router()


class OutageOut(Schema):
    """A time in which at least one pod decided locally; `end` is null while it lasts."""

    begin: datetime
    end: datetime | None
    #: Pods that decided locally at some time of it.
    pods: int


class ReconciledLimitOut(Schema):
    """One limit of one tenant, or of all together.

    `over` is at least what was over the limit, and null if the limit is not known; `over_at_most` is a bound
    that always holds. Both are equal if `certainty` is `exact`.
    """

    #: `t:` and the digest of a tenant, `d:` and a dependency, or `i:` and the digest of a caller.
    domain: str
    #: Empty for limits of all tenants together, and for tenants that were never registered.
    tenant: str
    dependency: str
    rule: str
    measure: str
    #: A shadow limit: it refuses nothing, so it is in no sum.
    shadow: bool
    #: It counts each address, login, key or endpoint; this is one of them.
    divided: bool
    #: Spans of time in which something was allowed without Redis.
    spans: int
    without_redis: int
    #: Requests allowed beside it in these spans; null if that is not known.
    with_redis: int | None
    #: The most that the limit allows in these spans; null if the limit is not known.
    capacity: int | None
    over: int | None
    over_at_most: int
    certainty: Literal["exact", "at_least", "unknown"]


class ReconciliationOut(FromObject):
    """What pods allowed without Redis in a time, limit by limit, those that were most over first."""

    since: datetime
    until: datetime
    #: Without shadow limits.
    without_redis: int
    #: At least this was over the limits that are listed.
    over: int
    #: Copied since then, at an unknown time: by pods of version 0.1, or that did not know the time.
    untimed: int
    #: Pods had no room to count these.
    uncounted: int
    #: Pods that are gone had these, and nobody has reported them.
    unreported: int
    #: Journals of dead pods that were too old since then: what they counted is unknown.
    expired_journals: int
    #: Journals of dead pods that other pods reported since then: what they counted is included.
    adopted_journals: int
    #: Nothing is missing, and every number is exact.
    certain: bool
    #: Reports of pods until then are in it; null before the first copy.
    complete_until: datetime | None
    #: Why nothing is copied from Redis now; empty if it is.
    problem: str
    #: Limits that are not listed.
    more: int
    limits: list[ReconciledLimitOut]

    @staticmethod
    def resolve_certain(report: Report) -> bool:
        return report.is_certain

    @staticmethod
    def resolve_limits(report: Report) -> list[Line]:
        return report.lines


@router.get("/outages", response=list[OutageOut])
def list_outages(request: HttpRequest, environment: Environment) -> Any:
    """Outages of the last 30 days, the newest first, at most 100. Drills are among them."""
    return outages(environment_of(environment).slug)


@router.get("", response=ReconciliationOut)
def get_reconciliation(
    request: HttpRequest, environment: Environment, since: Since = None, until: Until = None
) -> Report:
    """What pods allowed without Redis, from `since` to `until`. No quota counts it."""
    start, end = range_of(since, until)
    if end - start > LONGEST:
        raise InvalidEdit({"since": [f"Ask for at most {LONGEST.days} days."]})
    return reconciled(environment_of(environment).slug, start, end)
