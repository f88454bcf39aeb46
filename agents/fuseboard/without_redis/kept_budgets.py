"""This pod knows what is spent of budgets, in case the store loses it.

A store that has lost its data counts a budget from 0 again, and would let all of it be spent twice. So each
pod looks at the budgets that its calls spend, and puts back what is missing: see ``lua/restore.lua``.
"""

import asyncio
import logging
import random
from collections import OrderedDict, defaultdict, deque

from msgspec import Struct

from fuseboard.batching.demand import LimitRef, RuleBook
from fuseboard.batching.encoding import msgpack_encode
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.scripts import RESTORE
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import NotServedError, Reply, Store

logger = logging.getLogger("fuseboard.budgets")

#: A budget that was spent is looked at after this time. What was spent since the last look of any pod is
#: lost with the store.
LOOK_S = 5.0
#: Budgets that are looked at together, of one domain and of all.
TOGETHER, MAX_AT_ONCE = 50, 500
#: The others of a round come this much later, so that 1,000 are looked at in half a second.
STEP_S = 0.25
#: Budgets kept. The least recently spent is dropped first.
MAX_KEPT = 50_000


class _Kept(Struct):
    """A budget in one period, as of the last look."""

    ref: LimitRef
    began_us: int
    #: The mark of the store then; empty before the first look.
    mark: str = ""
    amount: int = 0
    warned: bool = False


class KeptBudgets:
    """Belongs to the event loop."""

    def __init__(self, *, store: Store, health: StoreHealth, spending: KnownSpending) -> None:
        self._store = store
        self._health = health
        self._spending = spending
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        #: Budgets to look at in the next round, and those that are left of this one: each gets its turn,
        #: however many are spent all the time.
        self._due: dict[bytes, None] = {}
        self._round: deque[bytes] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        spending.on_budget = self._seen
        spending.on_correction = self._corrected
        spending.on_sent = self._sent

    def stop(self) -> None:
        self._stopped = True
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look_at_all(self) -> None:
        """Redis answers again, or has lost data: look at every budget of this pod."""
        self._add_all()
        self._look()

    def _add_all(self) -> None:
        """Budgets that are left of this round keep their places, so that each gets its turn."""
        left = set(self._round)
        self._round.extend(key for key in self._kept if key not in left)
        self._due.clear()

    def cleared(self, key: bytes) -> None:
        """An operator has cleared the counter: what this pod knows of it is of before."""
        kept = self._kept.get(key)
        if kept is not None:
            kept.amount = 0
            # The answer to a look that has begun before may be of before too.
            self._keep(kept.ref, kept.began_us)

    def _seen(self, ref: LimitRef, amount: int, began_us: int) -> None:
        """A call was decided by a budget, of which ``amount`` is spent now."""
        kept = self._keep(ref, began_us)
        if not kept.warned:
            self._warn(kept, amount)

    def _corrected(self, ref: LimitRef) -> None:
        """A call has ended, or a batch was charged: what is spent is not what the last look said."""
        if now_us := self._health.store_time_us():
            self._keep(ref, ref.rule(1.0, now_us)[2])

    def _sent(self, key: bytes) -> None:
        """A look that began before this correction was sent, does not know it: it may have waited long."""
        if key in self._kept:
            self._due[key] = None
            if self._timer is None:
                self._look_later()

    def _keep(self, ref: LimitRef, began_us: int) -> _Kept:
        """Look at a budget soon. Returns what is kept of it in the period with this beginning."""
        kept = self._kept.get(ref.key)
        if kept is None or kept.began_us != began_us:
            kept = self._kept[ref.key] = _Kept(ref, began_us)
        self._kept.move_to_end(ref.key)
        if len(self._kept) > MAX_KEPT:
            dropped, _ = self._kept.popitem(last=False)
            self._due.pop(dropped, None)  # one that is left of a round is passed over
        kept.ref = ref
        self._due[ref.key] = None
        if self._timer is None:
            self._look_later()
        return kept

    def _warn(self, kept: _Kept, amount: int) -> None:
        """Log once in a period that the budget is nearly spent."""
        limit = kept.ref.limit
        assert isinstance(limit, BudgetLimit)  # noqa: S101 - its caller looks at budgets only
        if limit.warn_percent and amount * 100 >= limit.warn_percent * limit.amount:
            kept.warned = True
            logger.warning(
                "budget.warn key=%s: %d of %d %s is spent in this %s",
                kept.ref.key.decode(),
                amount,
                limit.amount,
                limit.measure,
                limit.period,
            )

    def _look_later(self) -> None:
        if self._stopped:
            return
        delay_s = STEP_S if self._round else LOOK_S * random.uniform(0.8, 1.2)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._cancel_timer()
        if self._stopped or not self._health.usable:
            return  # every budget is looked at when Redis is back
        domains: dict[str, list[_Kept]] = defaultdict(list)
        now_us = self._health.store_time_us()
        if not self._round:
            self._round.extend(self._due)
            self._due.clear()
        for key in [self._round.popleft() for _ in range(min(MAX_AT_ONCE, len(self._round)))]:
            kept = self._kept.get(key)
            # A period that is over counts nothing any more.
            if (
                kept is not None
                and kept.ref.rule(1.0, now_us)[2] == kept.began_us
                and self._store.serves(key)
            ):
                domains[key.decode().partition("}")[0]].append(kept)
        for several in domains.values():
            for first in range(0, len(several), TOGETHER):
                self._ask(several[first : first + TOGETHER])
        if self._round or self._due:
            self._look_later()

    def _ask(self, several: list[_Kept]) -> None:
        rules = RuleBook(1.0, self._health.store_time_us())
        words: list[object] = []
        counters: list[bytes] = []
        for kept in several:
            words += (rules.number(kept.ref.limit), kept.mark, kept.amount)
            counters += (kept.ref.key, keys.budget_mark(kept.ref.key.decode()).encode())
        blob = msgpack_encode([rules.numbers, *words])
        self._store.run(RESTORE, tuple(counters), (blob,), lambda reply: self._answered(several, reply))

    def _answered(self, several: list[_Kept], reply: Reply) -> None:
        if isinstance(reply, Exception):
            # Decisions on the same store count its errors.
            if not isinstance(reply, NotServedError):
                logger.info("budget.not_looked_at: %s; it is retried", reply)
            # One that was dropped meanwhile is not looked at again.
            self._due.update(dict.fromkeys([kept.ref.key for kept in several if kept.ref.key in self._kept]))
            if self._timer is None:
                self._look_later()
            return
        lost = False
        for kept, answer in zip(several, reply if isinstance(reply, list) else (), strict=False):
            # A budget that is outside of its period has an empty answer.
            if not isinstance(answer, list) or len(answer) != 3 or self._kept.get(kept.ref.key) is not kept:
                continue
            mark, spent, restored = answer
            before, kept.mark = kept.mark, mark.decode()
            kept.amount = spent
            self._spending.put(kept.ref, spent, self._health.store_time_us())
            if before and before != kept.mark:
                lost = True
                logger.warning(
                    "budget.restored key=%s: Redis has lost what was spent; %d %s put back",
                    kept.ref.key.decode(),
                    restored,
                    kept.ref.limit.measure,
                )
        if lost:
            self._add_all()
            if self._timer is None:
                self._look()
