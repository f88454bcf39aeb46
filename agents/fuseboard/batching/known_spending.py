"""The last figures from Redis of the calendar limits that pods divide without it.

Such a limit counts from the start of its period. A pod that loses Redis must not begin with all of it, so it
spends its share of what was left. Times are store time in us.
"""

from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from fuseboard.batching.demand import Demand, LimitRef, most_at_once
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.shares import divides_what_is_left
from fuseboard.settings import MAX_SUBJECTS, scaled

#: Counters kept. The least recently counted is dropped first.
MAX_COUNTERS = 50_000


class _Spent(Struct):
    """Units that a counter had spent in the period that has these ends."""

    began_us: int
    ends_us: int
    amount: int


class KnownSpending:
    """Belongs to the event loop."""

    def __init__(self, most_subjects: int = MAX_SUBJECTS) -> None:
        self._most = scaled(MAX_COUNTERS, most_subjects)
        self._spent: OrderedDict[bytes, _Spent] = OrderedDict()
        #: Called with a budget, and with what Redis says is spent of it in the period with this beginning.
        self.on_budget: Callable[[LimitRef, int, int], None] = lambda *_: None
        #: Called with a budget of which something was spent or given back without a question.
        self.on_correction: Callable[[LimitRef], None] = lambda _: None
        #: Called with the counter of a budget when such a correction is on its way to Redis.
        self.on_sent: Callable[[bytes], None] = lambda _: None

    def learn(self, demand: Demand, now_us: int) -> None:
        """Redis has answered a question about ``demand``, which says what is left of its limits."""
        for ref, left in zip(demand.refs, demand.left, strict=True):
            if divides_what_is_left(ref.limit):
                amount = most_at_once(ref.limit) - left
                began_us = self.put(ref, amount, now_us)
                if isinstance(ref.limit, BudgetLimit):
                    self.on_budget(ref, amount, began_us)

    def set_spent(self, demand: Demand, now_us: int) -> None:
        """A ramp divides what is left of the limits of ``demand``: each learns what is spent."""
        if demand.divides_what_is_left:
            for ref in demand.refs:
                ref.spent = self.of(ref, now_us) or 0

    def put(self, ref: LimitRef, amount: int, now_us: int) -> int:
        """Redis says that so much is spent of a limit. Returns the beginning of its period."""
        began_us, ends_us = ref.rule(1.0, now_us)[2:4]
        self._spent[ref.key] = _Spent(began_us, ends_us, amount)
        self._spent.move_to_end(ref.key)
        if len(self._spent) > self._most:
            self._spent.popitem(last=False)
        return began_us

    def add(self, ref: LimitRef, amount: int, at_us: int) -> None:
        """Redis also counts ``amount`` for a call of this time, or will; a negative amount is given back."""
        if isinstance(ref.limit, BudgetLimit):
            self.on_correction(ref)
        known = self._spent.get(ref.key)
        if known is not None and (amount > 0 or at_us >= known.began_us):
            known.amount = max(0, known.amount + amount)

    def of(self, ref: LimitRef, now_us: int) -> int | None:
        """Units spent of the limit, as far as this pod knows; ``None`` if it never asked Redis about it.

        Nothing is spent of a period that began after the last answer.
        """
        known = self._spent.get(ref.key)
        if known is None:
            return None
        return known.amount if now_us < known.ends_us else 0
