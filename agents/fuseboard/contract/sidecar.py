"""The HTTP API of the sidecar: what an application in any language sends, and what it gets back.

An unknown member is refused with its name: a misspelled option would otherwise have no effect. Answers may
gain members.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from fuseboard.contract.words import BreakerState, CallTier, Mode, Outcome, OverrideMode, Reason, Slug

#: A larger body is refused.
MAX_BODY_BYTES = 16 * 1024
#: Reports in one request, and beside an admission. As many with a code and costs fit into a body.
MAX_REPORTS, MAX_CARRIED_REPORTS = 100, 50
#: The letters to which vendors' own texts are cut.
MAX_TEXT = 200
#: A longer call took this long.
MAX_ELAPSED_MS = 86_400_000
#: A longer deadline is this one.
MAX_DEADLINE_MS = 3_600_000
#: The longest wait that a caller may ask for.
MAX_WAIT_MS = 30_000
MAX_MEASURES = 16

REQUESTS_PATH = "/v1/requests"
CALLS_PATH = "/v1/calls"
REPORTS_PATH = "/v1/reports"
FINISH_PATH = "/v1/finish"
GIVE_BACK_PATH = "/v1/give-back"
CHECK_PATH = "/v1/check"
EXPLAIN_PATH = "/v1/explain"
DEPENDENCIES_PATH = "/v1/dependencies"

#: The id of a permit or of a hold.
Id = Annotated[str, Meta(min_length=1, max_length=64)]
Cost = Annotated[int, Meta(ge=1, le=1_000_000)]
Amount = Annotated[int, Meta(ge=0, le=10**12)]
Amounts = Annotated[dict[Slug, Amount], Meta(max_length=MAX_MEASURES)]
WaitMs = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)]
DeadlineMs = Annotated[int, Meta(ge=1)]


class CallError(StrEnum):
    """Why a call has no answer."""

    TIMEOUT = "timeout"
    #: The connection was not made, so the vendor never saw the call.
    CONNECT = "connect"
    #: The connection broke.
    RESET = "reset"
    #: The certificate is not the vendor's.
    TLS = "tls"
    #: The resolver did not answer.
    DNS = "dns"
    #: The answer is not HTTP, or cannot be decoded.
    PROTOCOL = "protocol"
    #: The caller did not want the answer any more.
    CANCELLED = "cancelled"
    #: The caller could not send it, such as for want of a free connection.
    LOCAL = "local"


class AskedSubject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The caller, below the tenant. Limits that count by a value which is left out do not apply."""

    #: Clients choose these values. All invalid ones, such as one of over 200 letters, share one counter.
    user: str = ""
    ip: str = ""
    api_key: str = ""
    #: The method and the template of the route: ``POST /v1/orders/{id}``. A long one is cut.
    endpoint: str = ""


class AskRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that enters the application."""

    #: ``null`` is a caller that belongs to no tenant: the limits of its subject decide.
    tenant: str | None = None
    subject: AskedSubject | None = None
    cost: Cost = 1
    costs: Amounts = {}
    #: A request that would be refused waits if the refusal ends within this time. ``null`` is what the
    #: configuration says.
    wait_ms: WaitMs | None = None
    #: Bounds the wait.
    deadline_ms: DeadlineMs | None = None


class Report(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a permitted call ended: one of ``outcome``, ``status`` and ``error``."""

    permit: Id
    outcome: Outcome | None = None
    #: The status of the vendor's answer. The sidecar judges it, with ``code`` and ``retry_after``.
    status: Annotated[int, Meta(ge=100, le=999)] | None = None
    error: CallError | None = None
    #: The vendor's own word in the body, such as ``insufficient_quota``. A long one is cut.
    code: str = ""
    #: The header ``Retry-After`` as it came. A long one is cut.
    retry_after: str = ""
    #: How long the call took; of a stream, the time until its first part.
    elapsed_ms: float | None = None
    #: The real costs, whatever the estimates were.
    settle: Amounts = {}

    def __post_init__(self) -> None:
        if (self.outcome is None) + (self.status is None) + (self.error is None) != 2:
            raise ValueError("Expected one of `outcome`, `status` and `error`")


class AskCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that leaves the application."""

    dependency: Slug
    #: Its quotas on the dependency apply too.
    tenant: str = ""
    cost: Cost = 1
    costs: Amounts = {}
    tier: CallTier | None = None
    #: Also spend the tenant's quotas on requests: for work that no request started.
    spend_quota: bool = False
    wait_ms: WaitMs | None = None
    #: Within which time the call must have ended. Bounds every wait, and ``timeout_ms``.
    deadline_ms: DeadlineMs | None = None
    #: Calls that have ended since the last request.
    reports: Annotated[tuple[Report, ...], Meta(max_length=MAX_CARRIED_REPORTS)] = ()


class Finish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request has ended: its slots are free."""

    hold: Id
    settle: Amounts = {}


class GiveBack(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call was not made, or a request not served: what it spent is refunded."""

    permit: Id | None = None
    hold: Id | None = None

    def __post_init__(self) -> None:
        if (self.permit is None) == (self.hold is None):
            raise ValueError("Expected one of `permit` and `hold`")


class AskCheck(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request that is not made: what would be decided?"""

    #: See ``AskRequest``.
    tenant: str | None = None
    subject: AskedSubject | None = None
    cost: Cost = 1
    costs: Amounts = {}


class AskExplanation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request, or with ``dependency`` a call, which is explained and not made."""

    dependency: Slug | None = None
    #: ``null`` is a request, or a call, of no tenant.
    tenant: str | None = None
    #: Only requests have one.
    subject: AskedSubject | None = None
    cost: Cost = 1
    costs: Amounts = {}


class AllowedRequest(Struct, frozen=True, kw_only=True):
    allowed: bool = True
    #: Send it to ``/v1/finish``; ``null`` if there is nothing to free and nothing to settle.
    hold: str | None = None
    #: Headers that the application adds to its answer.
    headers: dict[str, str] = {}
    mode: Mode = Mode.SHARED
    revision: int = 0


class AllowedCall(Struct, frozen=True, kw_only=True):
    allowed: bool = True
    #: Send it back in a report.
    permit: str
    #: How long the call may take; ``null`` if the dependency is not registered, or if only the parts of its
    #: answer are bounded.
    timeout_ms: int | None = None
    #: How long the call may take until the first part of its answer, if that is a stream; ``null`` for no
    #: such bound.
    first_part_ms: int | None = None
    #: How long each further part may take.
    between_parts_ms: int | None = None
    #: When the permit ends without a report.
    expires_ms: int
    state: BreakerState = BreakerState.CLOSED
    mode: Mode = Mode.SHARED
    revision: int = 0


class RefusedAnswer(Struct, frozen=True, kw_only=True):
    """A refusal. ``status``, ``headers`` and ``problem`` are an answer that the application can send on."""

    allowed: bool = False
    status: int
    reason: Reason | None
    rule: str = ""
    retry_after_ms: int = 0
    headers: dict[str, str] = {}
    #: Problem details (RFC 9457).
    problem: Raw
    mode: Mode = Mode.SHARED
    revision: int = 0


class InvalidReport(Struct, frozen=True, kw_only=True):
    """A report that counts nothing. Its permit may be reported again."""

    #: Its place among the reports, from 0.
    place: int
    detail: str


class Accepted(Struct, frozen=True, kw_only=True):
    accepted: int
    #: Permits and holds that have ended, or never were: their reports count nothing.
    unknown: tuple[str, ...] = ()
    #: The others count.
    invalid: tuple[InvalidReport, ...] = ()


class LimitLeft(Struct, frozen=True, kw_only=True):
    """A limit that applies to the request."""

    name: str
    limit: int
    #: ``null`` if it is not known, such as without Redis.
    remaining: int | None
    #: The length of its window; of a limit of requests at once, when a forgotten slot is free again.
    window_ms: int
    #: The cost that it counts.
    measure: str = "calls"


class Checked(Struct, frozen=True, kw_only=True):
    """The decision that the request would get now. Another caller may be faster."""

    would: Literal["allowed", "refused"]
    reason: Reason | None = None
    rule: str = ""
    retry_after_ms: int = 0
    left: tuple[LimitLeft, ...] = ()
    mode: Mode = Mode.SHARED
    revision: int = 0


class DependencyState(Struct, frozen=True, kw_only=True):
    """A dependency as this sidecar knows it."""

    name: str
    state: BreakerState
    #: A larger number after each change of the fleet's breaker.
    generation: int
    #: An operator's temporary setting of the breaker.
    override: OverrideMode | None = None
    #: Every call is refused for this time, by the breaker, an override or the vendor's own word; 0 for none.
    #: Limits can refuse further calls.
    retry_after_ms: int = 0


class ExplainedDecision(Struct, frozen=True, kw_only=True):
    """The output of ``fuseboard explain``, for people and with ``--json``."""

    text: str
    explanation: Raw


class Problem(Struct, frozen=True, kw_only=True):
    """Why there is no decision. The body of each status but 200."""

    type: str
    title: str
    status: int
    detail: str


#: The bodies of each path: of a request, and of an answer with 200.
OPERATIONS: dict[str, tuple[Any, tuple[type[Struct], ...]]] = {
    REQUESTS_PATH: (AskRequest, (AllowedRequest, RefusedAnswer)),
    CALLS_PATH: (AskCall, (AllowedCall, RefusedAnswer)),
    REPORTS_PATH: (Annotated[tuple[Report, ...], Meta(min_length=1, max_length=MAX_REPORTS)], (Accepted,)),
    FINISH_PATH: (Finish, (Accepted,)),
    GIVE_BACK_PATH: (GiveBack, (Accepted,)),
    CHECK_PATH: (AskCheck, (Checked,)),
    EXPLAIN_PATH: (AskExplanation, (ExplainedDecision,)),
}
#: The body of an answer with 200 to GET.
READS: dict[str, Any] = {DEPENDENCIES_PATH: tuple[DependencyState, ...]}
