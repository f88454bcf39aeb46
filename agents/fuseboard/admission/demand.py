"""What one call asks of Redis: some of each limit that binds it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseboard.admission.calendar import period_around
from fuseboard.contract.policy import Limit, lease_length_ms
from fuseboard.contract.words import Algorithm, FailurePolicy, Reason
from fuseboard.store.connection import Word

if TYPE_CHECKING:
    from fuseboard.admission.leases import Supply

#: Sub-buckets of a sliding window: the effective window is one tenth longer than promised.
RING_SIZE = 10

#: The part of a ``reserved`` limit that is never asked of Redis, so that it is safe to spend
#: locally when Redis is gone: shared + local never exceeds the limit.
RESERVED_PART = 0.1

_NUMBERS = {
    Algorithm.SLIDING_WINDOW: 1,
    Algorithm.TOKEN_BUCKET: 2,
    Algorithm.FIXED_WINDOW: 3,
    Algorithm.CONCURRENCY: 4,
}


class LimitRef:
    """One counter in Redis: a limit, and the key of the subject it counts.

    Equal when the key is: in one question a counter stands once, or what one group spends would
    be overwritten by what the next one does.
    """

    __slots__ = ("_hash", "_part", "_steady", "key", "limit")

    def __init__(self, limit: Limit, key: str) -> None:
        self.limit = limit
        self.key = key.encode()
        self._hash = hash(self.key)
        self._part = -1.0
        self._steady: tuple[Word, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LimitRef) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_slot(self) -> bool:
        return self.limit.algorithm is Algorithm.CONCURRENCY

    def arguments(self, part: float, now_us: int) -> tuple[Word, ...]:
        """What the scripts take of it; ``part`` is Redis's part of the limit while ramping."""
        if self.limit.algorithm is Algorithm.FIXED_WINDOW:
            return _period_arguments(self.limit, part, now_us)
        if part != self._part:
            self._part, self._steady = part, _steady_arguments(self.limit, part)
        return self._steady


@dataclass(slots=True)
class Denial:
    """A refusal, and until when it holds in monotonic seconds."""

    reason: Reason
    rule: str
    until: float


class Demand:
    """Limits, and what a call costs each. Made once for all like calls: identity is equality."""

    __slots__ = ("bulk", "costs", "denial", "holds_slots", "leasable", "priority", "refs", "supply")

    def __init__(self, refs: tuple[LimitRef, ...], costs: tuple[int, ...], priority: int = 0) -> None:
        self.refs = refs
        self.costs = costs
        #: 0 to 100; when something is scarce, higher is served first.
        self.priority = priority
        #: A refusal that still holds, so that Redis need not be asked again before.
        self.denial: Denial | None = None
        #: Asked for so many times by one caller; 0 for once by each.
        self.bulk = 0
        #: Whether its calls may be leased, and how often they are asked for.
        self.leasable = bool(refs) and all(_leasable(ref.limit) for ref in refs)
        self.supply: Supply | None = None
        #: It must be settled when the call has ended, or its slots are lost until their lease ends.
        self.holds_slots = any(ref.is_slot for ref in refs)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(ref.limit for ref in self.refs)

    def deny(self, reason: Reason, rule: str, until: float) -> None:
        self.denial = Denial(reason, rule, until)

    def never_fits(self) -> Limit | None:
        """A limit that could not admit this however long one waits."""
        for ref, cost in zip(self.refs, self.costs, strict=True):
            if cost > most_at_once(ref.limit) and not ref.limit.shadow:
                return ref.limit
        return None


def most_at_once(limit: Limit) -> int:
    """What fits in an empty limit."""
    if limit.limit == 0:
        return 0
    return limit.burst if limit.algorithm is Algorithm.TOKEN_BUCKET else limit.limit


def shared_limit(limit: Limit) -> int:
    """The calls per window that Redis may grant."""
    if limit.failure_policy is FailurePolicy.RESERVED:
        return limit.limit - int(limit.limit * RESERVED_PART)
    return limit.limit


def limit_arguments(limit: Limit, part: float, now_us: int) -> tuple[Word, ...]:
    """Of a limit that has no key yet, as ``LimitRef.arguments``."""
    return LimitRef(limit, "").arguments(part, now_us)


def _period_arguments(limit: Limit, part: float, now_us: int) -> tuple[Word, ...]:
    assert limit.period is not None  # noqa: S101 - decode_policy saw to it
    began, ends = period_around(now_us, limit.period, limit.time_zone)
    return (3, max(1, int(shared_limit(limit) * part)), began, ends, int(limit.shadow), _lenient(limit))


def _steady_arguments(limit: Limit, part: float) -> tuple[Word, ...]:
    calls = max(1, int(shared_limit(limit) * part))
    size = 0
    if limit.algorithm is Algorithm.SLIDING_WINDOW:
        size = RING_SIZE
    elif limit.algorithm is Algorithm.TOKEN_BUCKET:
        size = max(1, int(limit.burst * part))
    number = _NUMBERS[limit.algorithm]
    window_ms = limit.window_ms
    if limit.algorithm is Algorithm.SLIDING_WINDOW and _leasable(limit):
        # Leased calls are made up to this much later than they were charged.
        window_ms += lease_length_ms(limit)
    return (number, calls, window_ms * 1000, size, int(limit.shadow), _lenient(limit))


def _leasable(limit: Limit) -> bool:
    if limit.algorithm is Algorithm.SLIDING_WINDOW:
        return limit.lease_above > 0
    return limit.algorithm is not Algorithm.CONCURRENCY and not limit.shadow


def _lenient(limit: Limit) -> int:
    """A counter that cannot be read is decided by the limit's failure policy."""
    return int(limit.failure_policy is FailurePolicy.FAIL_OPEN)
