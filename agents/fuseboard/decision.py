"""The values that the agent returns: a decision for every call, and a permit for every call that may be made.

Structs, not dataclasses: nearly every call makes one, and a frozen dataclass costs eight times as much.
"""

from asyncio import get_running_loop
from collections.abc import Callable, Collection, Mapping
from time import monotonic
from typing import Any, Protocol, Self

from msgspec import Struct, field
from msgspec.structs import replace

from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.budgets import AtSpent
from fuseboard.contract.models import Price
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, BreakerState, Mode, Period, Reason

#: The most that one call may have cost of a measure.
MAX_ACTUAL = 10**12


class LimitStatus(Struct, frozen=True, kw_only=True, gc=False):
    """One limit that was checked, for response headers and ``explain``."""

    name: str
    limit: int
    window_ms: int
    #: Calls left, as a lower bound; ``None`` when this decision did not learn it.
    remaining: int | None = None
    #: ``warn_percent`` of the limit is spent.
    warning: bool = False
    algorithm: Algorithm = Algorithm.TOKEN_BUCKET
    #: The cost that is counted: ``calls``, or another cost of a call.
    measure: str = "calls"
    #: It counts, but never refuses.
    shadow: bool = False
    #: The period of a calendar limit.
    period: Period | None = None
    time_zone: str = "UTC"
    #: The fate of calls when it is spent; ``None`` if it is not a budget.
    at_spent: AtSpent | None = None
    #: A budget that degrades is spent: choose something cheaper.
    degraded: bool = False

    @classmethod
    def of(cls, limit: Limit) -> Self:
        """The status of a limit before anything is known about its use."""
        return cls(
            name=limit.name,
            limit=limit.amount if isinstance(limit, BudgetLimit) else limit.limit,
            window_ms=limit.window_ms,
            algorithm=limit.algorithm,
            measure=limit.measure,
            shadow=limit.shadow,
            period=limit.period,
            time_zone=limit.time_zone,
            at_spent=limit.at_spent if isinstance(limit, BudgetLimit) else None,
        )

    def __str__(self) -> str:
        window = f"at once, slots expire after {_length(self.window_ms)}"
        if self.algorithm is not Algorithm.CONCURRENCY:
            window = f"per {_length(self.window_ms)}"
        left = "" if self.remaining is None else f", {max(0, self.remaining)} left"
        return f"{self.name!r} ({self.algorithm}, {self.limit} {self.measure} {window}{left})"


class Account:
    """The corrections of a charge, so that each call is settled, given back and ended once.

    Like calls that come together share a charge if it has no estimates, and so do the calls of a lease. Their
    account is one: together they get back what they spent, and no more. It belongs to the loop of the agent.
    """

    __slots__ = ("_ended", "_given_back", "_settled", "calls", "lease", "owner", "uncounted")

    def __init__(self, owner: object = None, uncounted: Collection[bytes] = ()) -> None:
        #: The agent that made the charge. Another agent cannot correct it.
        self.owner = owner
        #: Counters of shadow limits that had no room, and so did not count the call.
        self.uncounted = uncounted
        #: The calls that share it, unless they are those of a lease.
        self.calls = 1
        self.lease: Any = None
        self._settled: dict[str, list[int]] = {}
        self._given_back = self._ended = 0

    def _open(self) -> int:
        """The calls that were not given back."""
        calls: int = self.calls if self.lease is None else self.lease.granted - self.lease.tokens
        return calls - self._given_back

    def settle(self, measure: str, actual: int) -> bool:
        """A call cost ``actual``. ``False`` if that was said of each call."""
        settled = self._settled.setdefault(measure, [])
        if len(settled) >= self._open():
            return False
        settled.append(actual)
        return True

    def give_back(self, costs: Mapping[str, int]) -> dict[str, int] | None:
        """A call was not made. What it has spent by now, by measure; ``None`` if none is left."""
        left = self._open() - 1
        if left < 0:
            return None
        self._given_back += 1
        spent = dict(costs)
        for measure, settled in self._settled.items():
            if len(settled) > left:
                spent[measure] = settled.pop()
        return spent

    def end(self) -> bool:
        """A call has ended. ``False`` if all have."""
        if self._ended >= (self.calls if self.lease is None else self.lease.granted):
            return False
        self._ended += 1
        return True


class Charge(Struct, frozen=True):
    """The charge of an allowed call, and where: to settle it when its real cost is known."""

    domain: str
    #: A ``fuseboard.batching.demand.Demand``, for the agent alone.
    demand: Any
    #: Store time of the admission; of a local charge, the monotonic clock in us.
    at_us: int
    token: str
    #: Charged to this pod's share, not in Redis.
    local: bool = False
    #: The account is for the agent alone.
    account: Account = field(default_factory=Account)


class Amounts(Protocol):
    """The usage of a call, by measure. ``fuseboard.llm.Usage`` is one."""

    def amounts(self, price: Price | None = None, *, batch: bool = False) -> Mapping[str, int]:
        """Amounts in the unit of each measure. With a ``price``, the money of a call or of a batch is one."""


class Signer(Protocol):
    """Makes the token of a refusal, and its address; for the agent alone."""

    def sign(self, decision: "Decision") -> str: ...

    def explain_url(self, token: str) -> str: ...


class Decision(Struct, frozen=True, kw_only=True):
    """Allowed or refused, with everything needed to explain it."""

    allowed: bool
    #: Set only when refused.
    reason: Reason | None = None
    #: When asking again can succeed, in milliseconds; 0 when allowed or unknown.
    retry_after_ms: int = 0
    #: The quota, vendor limit or dependency that decided.
    rule: str = ""
    tenant: str = ""
    dependency: str = ""
    #: The revision of the configuration that decided.
    revision: int = 0
    #: How this decision was made. ``LOCAL`` when the pod decided alone, also if it did only this time
    #: because Redis missed the deadline.
    mode: Mode = Mode.SHARED
    server: str = ""
    limits: tuple[LimitStatus, ...] = ()
    #: The decisions of requests that were decided together: one for each, in their order.
    parts: tuple["Decision", ...] = ()
    #: Costs that were spent. Pass the decision to ``Agent.settle`` or ``Agent.finish``.
    charges: tuple[Charge, ...] = ()
    #: Decided from memory, with a fleet lease.
    leased: bool = False
    #: The message of the answer to the caller, for a refusal that no limit explains.
    message: str = ""
    #: The signer of ``refusal_token``. It is for the agent alone.
    signer: Signer | None = None

    @property
    def degraded(self) -> bool:
        """A budget that degrades is spent. The call may be made, but the caller should choose something
        cheaper. Known when Redis decides.
        """
        return any(status.degraded for status in self.limits)

    def for_another_call(self) -> "Decision":
        """The decision of another call that was decided with this one."""
        for charge in self.charges:
            if charge.demand.has_estimates:
                return replace(self, charges=tuple([_own(charge) for charge in self.charges]))
            charge.account.calls += 1
        return self

    def __reduce__(self) -> Any:
        # A copy of another process corrects nothing, and cannot sign.
        if self.charges or self.signer is not None:
            return replace(self, charges=(), signer=None).__reduce__()
        return super().__reduce__()

    def holds_slots(self) -> bool:
        """Whether ``Agent.finish`` has anything to free."""
        return any(charge.local or charge.demand.holds_slots for charge in self.charges)

    def refusal_token(self) -> str:
        """A new token of this refusal, which the control plane explains: send it to the caller, or log it.

        Middleware and handlers of Fuseboard send it as the header ``Fuseboard-Refusal``. Empty when the
        call is allowed, or when the agent has no key: it gets one with its first heartbeat.
        """
        return "" if self.allowed or self.signer is None else self.signer.sign(self)

    def explain_url(self, token: str = "") -> str:
        """The address of the page that explains this refusal, with ``token`` or a new one as its fragment.

        Empty without a token, and if the control plane has no ``FUSEBOARD_EXPLAIN_URL``.
        """
        token = token or self.refusal_token()
        return self.signer.explain_url(token) if token and self.signer is not None else ""

    def explain(self) -> str:
        """One sentence for a log line or a support ticket: who, why, by which rule and counter, and where."""
        by = f"by {self.server or 'this server'} in mode {self.mode}, revision {self.revision}"
        if self.allowed:
            return f"{self._subject()}: allowed {by}"
        again = f", try again in {self.retry_after_ms} ms" if self.retry_after_ms else ""
        counter = next((f"; limit {limit}" for limit in self.limits if limit.name == self.rule), "")
        rule = self.rule or "no rule"
        return f"{self._subject()}: refused ({self.reason}) by {rule}{again}, decided {by}{counter}"

    def _subject(self) -> str:
        names = (("tenant", self.tenant), ("dependency", self.dependency))
        return ", ".join(f"{kind} {name!r}" for kind, name in names if name) or "a caller without a tenant"


class Parts(Struct, frozen=True, gc=False):
    """The bounds of a streamed answer in seconds: until its first part, and between two. 0 is no bound."""

    first_s: float
    between_s: float


class Permit(Struct, kw_only=True, gc=False):
    """Permission to make one call to a dependency. Report its outcome exactly once."""

    #: The decision, or the object that makes it when it is read. It rarely is.
    made: Any
    dependency: str
    #: The breaker's generation at admission. Outcomes of an older generation change nothing.
    generation: int
    #: The probe permit of a half-open breaker; empty when the breaker was closed.
    token: str = ""
    state: BreakerState = BreakerState.CLOSED
    reported: bool = False
    #: Where the agent counts the call if it ends well and holds no slots.
    tally: Any = None
    #: The local breaker's generation; used only without ``tally``.
    local_generation: int = 0
    #: Corrects what the call was charged: the agent that gave the permit.
    settler: Callable[[Decision, str, int], None] | None = None
    #: The dependency's timeout; ``None`` when it is not registered. ``Agent.call`` and ``acall`` cancel the
    #: block after this time. Pass it to a blocking client.
    timeout_s: float | None = None
    #: The bounds of a streamed answer, which has no other; ``None`` if the dependency has none.
    parts: Parts | None = None
    #: The caller's deadline leaves less time than a good call may take.
    hurried: bool = False
    #: The tier that the caller named, and its deadline. All fields from here are for the agent alone.
    tier: str | None = None
    until: float | None = None
    #: When the block of the call began, its timer, and when the first part of its answer came after that.
    began_s: float | None = None
    timer: Any = None
    first_part_s: float | None = None
    #: The slot that the call uses in the dependency's protection; ``None`` without one.
    slot: Any = None
    #: The kind of a call that failed, and the id of its trace.
    failure: tuple[str, str] | None = None
    #: The call is a probe that runs; ``None`` if it is not. For the agent alone.
    probe: Any = None
    #: The vendor does not serve the account of this pod. For the agent alone.
    account_refused: bool = False
    #: It serves no pod with that account: not the key is wrong, but its credit is spent, or it is closed.
    account_spent: bool = False
    #: ``count`` adds up here what the call has used so far, by measure. For the agent alone.
    counted: dict[str, int] | None = None
    #: The amounts that were settled, by measure. For the agent alone.
    settled: dict[str, int] | None = None
    #: The call was not made, and its charges were refunded. For the agent alone.
    given_back: bool = False
    #: The name of who saw how the call ended, for the breaker of the fleet; empty for this pod.
    witness: str = ""

    @property
    def decision(self) -> Decision:
        """Why the call may be made, by which limits, and what it was charged."""
        if not isinstance(self.made, Decision):
            self.made = self.made.decide()
        decision: Decision = self.made
        return decision

    def part(self) -> None:
        """A part of a streamed answer has arrived. Call it for each one, in the block of the call.

        The first part ends the time by which the call counts as slow. After that, the block ends with
        ``TimeoutError`` when no part comes for the dependency's ``between_parts_ms``.
        """
        now = monotonic()
        if self.first_part_s is None and self.began_s is not None:
            self.first_part_s = now - self.began_s
        if self.timer is None or self.parts is None or self.timer.expired():
            return
        left_s = self.parts.between_s or None
        if self.until is not None:
            left_s = self.until - now if left_s is None else min(left_s, self.until - now)
        self.timer.reschedule(None if left_s is None else get_running_loop().time() + left_s)

    def end_stream(self) -> None:
        """The block ended well. If the answer was a stream that reported no part, its parts were not slow."""
        if self.parts is not None and self.first_part_s is None:
            self.first_part_s = 0.0

    @property
    def estimated(self) -> set[str]:
        """The measures whose cost is an estimate until it is settled."""
        measures = {measure for charge in self.decision.charges for measure in charge.demand.measures}
        return measures - {"calls"}

    def settle(self, measure: str, actual: int) -> None:
        """The call cost ``actual`` of ``measure``, whatever the estimate was. Once per measure.

        Raises ``Misconfigured`` unless ``actual`` is a whole number of at least 0.
        """
        if self.settler is not None:
            self.settler(self.decision, measure, actual)
            if self.settled is None:
                self.settled = {}
            self.settled.setdefault(measure, actual)

    def cost(self) -> dict[str, int]:
        """The cost of the call, by measure that a limit counts: as settled, or else the estimate. If it was
        given back, nothing.
        """
        amounts: dict[str, int] = {}
        for charge in self.decision.charges:
            amounts |= charge.demand.amounts()
        amounts.pop("calls", None)
        settled = dict.fromkeys(amounts, 0) if self.given_back else self.settled or {}
        return {measure: settled.get(measure, amount) for measure, amount in amounts.items()}

    def settle_all(self, usage: Amounts | Mapping[str, int]) -> None:
        """The call has used ``usage``, whatever the estimates were: ``settle`` for all its measures at once.

        Amounts by measure, in the unit of each: tokens, or ``micro_usd`` in millionths of a dollar. A measure
        that no limit counts is left out. One that ``usage`` does not name keeps its estimate.

        Raises ``Misconfigured`` unless each amount is a whole number of at least 0. Then nothing is settled.
        """
        amounts = usage if isinstance(usage, Mapping) else usage.amounts()
        # A wrong amount comes first, and raises before any other is settled.
        wrong = [measure for measure, amount in amounts.items() if not is_amount(amount)]
        for measure in (*wrong, *self.estimated.intersection(amounts)):
            self.settle(measure, amounts[measure])

    def count(self, measure: str, amount: int) -> None:
        """The call has used ``amount`` more of ``measure``. For answers that can break off or be left early.

        When the call ends, whatever ends it, it costs what was counted, unless ``settle`` was called before.
        Raises ``ValueError`` unless ``amount`` is a whole number of at least 0.
        """
        if type(amount) is not int or amount < 0:
            raise ValueError(f"count({measure!r}) takes a whole number of at least 0, not {amount!r:.80}")
        if self.counted is None:
            self.counted = {}
        self.counted[measure] = self.counted.get(measure, 0) + amount


def is_amount(actual: object) -> bool:
    """Whether a call may have cost this of a measure."""
    return type(actual) is int and 0 <= actual <= MAX_ACTUAL


def _own(charge: Charge) -> Charge:
    account = charge.account
    return replace(charge, account=Account(account.owner, account.uncounted))


def _length(milliseconds: int) -> str:
    """A window in the largest unit that fits."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"
