"""Requests and responses about refused requests."""

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Schema
from pydantic import Field

from controlplane.api.schemas import FromObject
from controlplane.api.schemas.edits_in import Strict, Subject
from controlplane.refusals.explain import Explanation
from controlplane.refusals.models import RefusalSample
from controlplane.refusals.top_lists import Top, TopLists


class ExplainIn(Strict):
    token: Annotated[
        str,
        Field(
            min_length=1,
            max_length=300,
            description="The header Fuseboard-Refusal of the answer, or instance of its problem details.",
        ),
    ]
    tenant: Annotated[
        Subject | Literal[""],
        Field(description="An id that is not registered, and that the token may be about."),
    ] = ""


class RefusalRuleOut(Schema):
    name: str
    #: quota, subject_limit, descriptors, vendor_limit, budget, account, dependency, pod or suspended;
    #: empty if unknown.
    kind: str
    dependency: str


class ThenOrNowOut(Schema):
    revision: int
    #: In words; empty if the rule does not exist, or is not a limit.
    limit: str
    #: tier, tenant, dependency or environment, and its name; empty if the rule does not exist.
    kind: str
    name: str
    tier: str
    suspended: bool


class ChangeSinceOut(Schema):
    revision: int
    at: datetime
    by: str
    reason: str
    kind: str
    name: str
    #: Field -> values before and after.
    fields: dict[str, tuple[Any, Any]]


class BudgetLeftOut(Schema):
    #: The unit of the amounts: ``micro_usd``, or another cost.
    measure: str
    amount: int
    #: Null while Redis does not answer.
    spent: int | None
    #: The end of its present period.
    ends: datetime


class TransitionThenOut(Schema):
    at: datetime
    from_state: str
    to_state: str
    cause: str
    actor: str


class ExplainedOut(FromObject):
    environment: str
    service: str
    at: datetime
    #: Null for a reason that this release does not know.
    reason: str | None
    mode: str | None
    retry_after_ms: int
    #: Null if no known rule fits.
    rule: RefusalRuleOut | None
    #: Empty if it is not known; ``tenant_state`` says why.
    tenant: str
    #: registered, removed, unregistered, unknown, invalid or none.
    tenant_state: str
    #: Empty if the name is not known any more.
    pod: str
    then: ThenOrNowOut
    now: ThenOrNowOut
    #: False if Postgres does not have the revision: values of then may be wrong.
    known_revision: bool
    #: The latest changes of the rule since then, at most 5.
    changes: list[ChangeSinceOut]
    #: The last transition of the breaker before the refusal.
    transition: TransitionThenOut | None
    #: The budget that refused, as it is now; null if none did.
    left: BudgetLeftOut | None = None
    headline: str
    #: The explanation in words.
    sentences: list[str]

    @staticmethod
    def resolve_tenant(found: Explanation) -> str:
        return found.tenant.name

    @staticmethod
    def resolve_tenant_state(found: Explanation) -> str:
        return found.tenant.state


class RefusalOut(FromObject):
    """A sample: one of many refusals. Who asked is not in it, not even as a digest."""

    id: int
    at: datetime
    service: str
    pod: str
    #: Empty for a refusal of a request.
    dependency: str
    rule: str
    reason: str
    mode: str
    #: Empty if the caller had none.
    tenant: str
    #: The template of a route; empty if the service reports none.
    endpoint: str
    revision: int
    retry_after_ms: int
    #: The trace id of W3C Trace Context; empty if the request belongs to no trace.
    trace_id: str
    #: How many refusals it stands for: an estimate.
    weight: float

    @staticmethod
    def resolve_pod(row: RefusalSample) -> str:
        return row.server

    @staticmethod
    def resolve_trace_id(row: RefusalSample) -> str:
        return row.trace


class RefusalPage(Schema):
    items: list[RefusalOut]
    #: The ``before`` of the next page; null for the last one.
    next: int | None


class CountedRefusalsOut(Schema):
    """What pods counted in the measured part of the range."""

    refused: int
    #: Null where nothing counts it.
    asked: int | None
    known_s: int


class RefusalLineOut(Schema):
    value: str
    samples: int
    #: The number of all refusals that the filter finds: an estimate from the samples.
    percent: float
    #: Null if pods do not count this combination, or nothing is stored of it.
    counted: CountedRefusalsOut | None


class RefusalCountsOut(Schema):
    """A count and an estimate are never mixed."""

    counted: CountedRefusalsOut | None
    samples: int
    tenant: list[RefusalLineOut]
    rule: list[RefusalLineOut]
    endpoint: list[RefusalLineOut]
    pod: list[RefusalLineOut]
    reason: list[RefusalLineOut]
    dependency: list[RefusalLineOut]


class TopLineOut(FromObject):
    #: Empty for refusals without one, such as those of a caller without a tenant.
    name: str
    count: float


class TopListOut(FromObject):
    """One list: the names with the most refusals first, at most 20."""

    #: requests: answered 429 or 503. calls: to dependencies, and not made.
    of: Literal["requests", "calls"]
    by: Literal["tenant", "endpoint", "reason", "dependency"]
    #: Estimated from samples; pods count the others.
    sampled: bool
    #: All refusals of this list, also of names that are not in ``lines``.
    total: float
    #: The most that any name can have been counted beyond its line.
    short_by: float
    lines: list[TopLineOut]

    @staticmethod
    def resolve_of(top: Top) -> str:
        return top.kind.of.value

    @staticmethod
    def resolve_by(top: Top) -> str:
        return top.kind.by.value

    @staticmethod
    def resolve_sampled(top: Top) -> bool:
        return top.kind.sampled


class TopRefusalsOut(FromObject):
    #: The range that the lists are of.
    start: datetime
    end: datetime
    #: Null if nothing is stored.
    stored_since: datetime | None
    lists: list[TopListOut]

    @staticmethod
    def resolve_lists(found: TopLists) -> list[Top]:
        return list(found.lists.values())
