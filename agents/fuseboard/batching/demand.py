"""The question of one call to Redis: an amount of each limit that applies to it."""

from fuseboard.batching.encoding import GroupText
from fuseboard.batching.refusals import RememberedRefusal
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.limits import lease_length_ms
from fuseboard.contract.policy import Limit
from fuseboard.contract.shares import divides_what_is_left, reserved_burst, reserved_calls
from fuseboard.contract.words import Algorithm, FailurePolicy
from fuseboard.reporting.request_tallies import UNCOUNTED

#: Sub-buckets of a sliding window. The effective window is a tenth longer than the configured one.
RING_SIZE = 10

#: The most slots of one call, because Redis stores each slot. A call of a higher cost never fits.
MAX_SLOTS = 1_000

#: When a demand has texts for this many orders of counters, they are all dropped.
MAX_TEXTS = 16

#: Store time in us. No rule changes with time after it.
FOR_EVER = 1 << 62

_NUMBERS = {
    Algorithm.SLIDING_WINDOW: 1,
    Algorithm.TOKEN_BUCKET: 2,
    Algorithm.FIXED_WINDOW: 3,
    Algorithm.CONCURRENCY: 4,
}


class LimitRef:
    """One counter in Redis: a limit, and the key of the subject it counts.

    Two refs with one key are one counter, so counters are numbered by key.
    """

    __slots__ = ("_rule", "_rule_until_us", "is_slot", "key", "limit", "spent")

    def __init__(self, limit: Limit, key: str) -> None:
        self.limit = limit
        self.key = key.encode()
        self.is_slot = is_slot(limit)
        #: Units that were spent of a calendar limit when a ramp began: pods and Redis divide the rest.
        self.spent = 0
        self._rule: tuple[float, tuple[int, ...]] = (-1.0, ())
        self._rule_until_us = 0

    def rule(self, part: float, now_us: int) -> tuple[int, ...]:
        """``rule_of`` its limit, worked out once for all demands that share it."""
        if part < 1 and divides_what_is_left(self.limit):
            return rule_of(self.limit, part, now_us, self.spent)
        if self._rule[0] != part or now_us >= self._rule_until_us:
            self._rule = part, rule_of(self.limit, part, now_us)
            self._rule_until_us = period_end(self.limit, now_us)
        return self._rule[1]


class RuleBook:
    """The rules of one question, numbered from 1. A rule that applies to many keys is listed once."""

    __slots__ = ("_count", "_known", "_now_us", "_part", "numbers")

    def __init__(self, part: float, now_us: int) -> None:
        self._known: dict[int, int] = {}
        self._count = 0
        self._part = part
        self._now_us = now_us
        self.numbers: list[int] = []

    def number(self, limit: Limit) -> int:
        # Found by identity: a tier's limit is one object for all its tenants, and hashing it costs more.
        number = self._known.get(id(limit))
        if number is None:
            number = self._known[id(limit)] = self.add(rule_of(limit, self._part, self._now_us))
        return number

    def add(self, rule: tuple[int, ...]) -> int:
        """The number of a rule whose limit is not known here."""
        self._count += 1
        self.numbers += rule
        return self._count


class Demand:
    """Limits, and what one call costs in each. Compared by identity, so that a dict finds like calls
    quickly.
    """

    __slots__ = (
        "_first",
        "_new",
        "_places",
        "_texts",
        "bulk",
        "costs",
        "divides_what_is_left",
        "has_estimates",
        "holds_slots",
        "keys",
        "left",
        "measures",
        "priority",
        "refs",
        "remembered",
        "tally",
    )

    #: It is never granted, so it changes no counter. Its refusals and figures are not remembered.
    only_asks = False

    def __init__(self, refs: tuple[LimitRef, ...], costs: tuple[int, ...], priority: int = 0) -> None:
        self.refs = refs
        self.keys = tuple([ref.key for ref in refs])
        self.measures = tuple([ref.limit.measure for ref in refs])
        #: A call occupies as many slots as it costs.
        self.costs = costs
        #: 0 to 100. When a limit is scarce, higher is served first.
        self.priority = priority
        #: How many calls one caller asks for; 0 when every caller asks for one.
        self.bulk = 0
        #: The call must be settled when it ends. Otherwise its slots stay taken until they expire.
        self.holds_slots = any(ref.is_slot for ref in refs)
        #: Pods divide what is left of some of its limits while they have no Redis.
        self.divides_what_is_left = any(divides_what_is_left(ref.limit) for ref in refs)
        #: The last refusal, while it still applies: Redis need not be asked before it ends.
        self.remembered: RememberedRefusal | None = None
        #: Other costs than calls: what callers say is an estimate.
        self.has_estimates = any(measure != "calls" for measure in self.measures)
        #: Units left of each limit when Redis last answered; empty when that is unknown.
        self.left: tuple[int, ...] = ()
        #: Where its requests are counted, with the names of the limits that apply.
        self.tally = UNCOUNTED
        # The numbers of its counters when it is the first demand of a question, which is nearly always.
        self._new = (0,) * len(refs)
        self._places = tuple(range(1, len(refs) + 1))
        self._first = dict(zip(self.keys, self._places, strict=True))
        #: Its text in a question, by the places of its counters there.
        self._texts: dict[tuple[int, ...], GroupText] = {}

    def would_refuse(self, place: int, calls: int) -> None:
        """The shadow limit at this place, from 0, would have refused so many calls."""
        self.tally.would_refuse(self.refs[place].limit.name, calls)

    def find(self, numbers: dict[bytes, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Number its counters in a question that already contains ``numbers``.

        Returns what the question writes for each (0 for a new one), and the number of each.
        """
        if not numbers and len(self._first) == len(self.keys):
            numbers.update(self._first)
            return self._new, self._places
        seen, places = [], []
        for key in self.keys:
            number = numbers.get(key, 0)
            seen.append(number)
            places.append(number or numbers.setdefault(key, len(numbers) + 1))
        return tuple(seen), tuple(places)

    def amounts(self) -> dict[str, int]:
        """The costs of a call, by measure."""
        return {
            ref.limit.measure: cost
            for ref, cost in zip(self.refs, self.costs, strict=True)
            if not ref.is_slot
        }

    def text(self, places: tuple[int, ...], part: float, now_us: int) -> GroupText:
        """Its text in a question. ``places`` are 0 for a counter that is new in the question, or its
        number there.
        """
        text = self._texts.get(places)
        changes = part < 1 and self.divides_what_is_left
        if text is None or changes or text.part != part or now_us >= text.until_us:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            text = self._texts[places] = GroupText(
                priority=self.priority,
                costs=self.costs,
                places=places,
                rules=tuple([ref.rule(part, now_us) for ref in self.refs]),
                part=part,
                until_us=min((period_end(ref.limit, now_us) for ref in self.refs), default=FOR_EVER),
            )
        return text


def most_at_once(limit: Limit) -> int:
    """The largest cost that fits in an empty limit."""
    if limit.limit == 0:
        return 0
    return limit.burst if limit.algorithm is Algorithm.TOKEN_BUCKET else limit.limit


def most_in_redis(limit: Limit) -> int:
    """The largest cost that Redis can ever admit: pods spend the reserved part."""
    if limit.shadow:
        return FOR_EVER
    if limit.limit == 0:
        return 0
    if is_slot(limit):
        return min(shared_limit(limit), MAX_SLOTS)
    if limit.algorithm is Algorithm.TOKEN_BUCKET:
        return max(1, limit.burst - reserved_burst(limit))
    return max(1, shared_limit(limit))


def slot_names(token: str, cost: int) -> tuple[str, ...]:
    """The names of the slots of one call in Redis, as ``fair_split.lua`` writes them."""
    return (token, *(f"{token}.{number}" for number in range(2, cost + 1)))


def is_slot(limit: Limit) -> bool:
    """Whether a call occupies a slot of the limit until it ends."""
    return limit.algorithm is Algorithm.CONCURRENCY


def has_ample_room(refs: tuple[LimitRef, ...], left: tuple[int, ...]) -> bool:
    """Whether each limit is known to be less than half used."""
    return len(left) == len(refs) and all(
        2 * still > most_at_once(ref.limit) for ref, still in zip(refs, left, strict=True)
    )


def shared_limit(limit: Limit) -> int:
    """The calls per window that Redis may grant."""
    return limit.limit - reserved_calls(limit)


def rule_of(limit: Limit, part: float, now_us: int, spent: int = 0) -> tuple[int, ...]:
    """The eight numbers of a limit in ``admit.lua``. ``part`` is the part of it that Redis decides during a
    ramp: of what was left when so much was ``spent``. The last two are of the whole, because its counter is.
    """
    if isinstance(limit, BudgetLimit) and not limit.stops:
        part = 1.0  # it has no bound that could be divided
    shared = shared_limit(limit)
    spent = min(spent, shared)
    calls = max(1, spent + int((shared - spent) * part))
    window_us, size, whole_size = limit.window_ms * 1000, 0, 0
    if limit.algorithm is Algorithm.SLIDING_WINDOW:
        size = RING_SIZE
        if may_be_leased(limit):
            # Leased calls may be made this much later than they were charged.
            window_us += lease_length_ms(limit) * 1000
    elif limit.algorithm is Algorithm.TOKEN_BUCKET:
        whole_size = max(1, limit.burst - reserved_burst(limit))
        size = max(1, int(whole_size * part))
    elif limit.period is not None:
        window_us, size = period_around(now_us, limit.period, limit.time_zone)
    # The limit's failure policy decides about a counter that cannot be read.
    lenient = int(limit.failure_policy is FailurePolicy.FAIL_OPEN)
    numbers = (_NUMBERS[limit.algorithm], calls, window_us, size, int(limit.shadow), lenient)
    return (*numbers, max(1, shared), whole_size or size)


def rule_of_period(began_us: int, ends_us: int) -> tuple[int, ...]:
    """The rule of a calendar limit of which only the period is known: enough for a charge."""
    return (_NUMBERS[Algorithm.FIXED_WINDOW], 1, began_us, ends_us, 0, 0, 1, ends_us)


def period_end(limit: Limit, now_us: int) -> int:
    """How long ``rule_of`` stays the same; store time in us."""
    if limit.period is None:
        return FOR_EVER
    return period_around(now_us, limit.period, limit.time_zone)[1]


def settling_span_us(limit: Limit) -> int:
    """Refunds of calls that were admitted within the same span of store time may be added up."""
    if limit.algorithm is not Algorithm.SLIDING_WINDOW:
        return 100_000
    return -(-rule_of(limit, 1.0, 0)[2] // RING_SIZE)


def may_be_leased_early(limit: Limit) -> bool:
    """Whether it may be leased at a low rate. A fixed window is not: calls that are leased at the end of one
    period may be made in the next.
    """
    return limit.algorithm is Algorithm.TOKEN_BUCKET and not limit.lease_above and not limit.shadow


def may_be_leased(limit: Limit) -> bool:
    if limit.algorithm is Algorithm.SLIDING_WINDOW:
        return limit.lease_above > 0
    if isinstance(limit, BudgetLimit):
        return False  # calls that are leased at the end of a period may be made in the next
    return limit.algorithm is not Algorithm.CONCURRENCY and not limit.shadow
