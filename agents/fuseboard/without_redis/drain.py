"""Reports to Redis what was decided without it: before a ramp begins, and soon after single calls.

Each segment counts once per domain, whatever happens in between: it is reported with its name, and
Redis remembers names for longer than a journal is kept.
"""

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Iterable

from fuseboard.batching.demand import LimitRef, RuleBook, rule_of_period
from fuseboard.batching.encoding import msgpack_encode
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.offline_fields import read_part
from fuseboard.contract.scripts import DRAIN
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import NotServedError, Reply, Store
from fuseboard.without_redis.journal import KEPT_S, Journal
from fuseboard.without_redis.local_limits import LocalLimits, Reported
from fuseboard.without_redis.offline_counts import Asked, Segment

logger = logging.getLogger("fuseboard.journal")

#: Totals in Redis expire after this time.
TOTALS_KEPT_S = 40 * 86_400
#: Domains reported together, and how long Redis may take for them.
TOGETHER = 50
ANSWER_S = 1.0
#: How long a ramp waits for the report. The rest follows in the background.
BEFORE_RAMP_S = 3.0
#: Single calls are reported after this time.
SOON_S = 2.0


class Drain:
    """Belongs to the event loop."""

    def __init__(
        self, *, store: Store, health: StoreHealth, local: LocalLimits, journal: Journal | None = None
    ) -> None:
        self._store = store
        self._health = health
        self._local = local
        self._offline = local.offline
        self.journal = journal
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._stopped = False
        #: Segments reported, and segments of pods that died before they could report them.
        self.reported = self.adopted = 0

    def noted(self) -> None:
        """A call was decided locally: report it soon, or write it to disk while Redis is unavailable."""
        if self.journal is not None and not self._health.usable:
            self.journal.noted()
        if self._timer is None and not self._stopped:
            delay_s = SOON_S * random.uniform(0.5, 1.5)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._soon)

    def stop(self) -> None:
        """Write to disk what is not reported yet. Another pod on this disk reports it."""
        self._stopped = True
        if self.journal is not None:
            self.journal.finish()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    async def before_ramp(self) -> None:
        """Report everything, for as long as a ramp may wait."""
        task = self.begin(orphans=True)
        await asyncio.wait({task}, timeout=BEFORE_RAMP_S)

    def _soon(self) -> None:
        self._timer = None
        if self._health.usable:
            self.begin()
        else:
            self.noted()  # when the connection comes back without an outage, nothing else starts a report

    def begin(self, *, orphans: bool = False) -> asyncio.Task[None]:
        """Report everything in the background; with ``orphans`` also what dead pods left on this disk."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._report_all(orphans), name="fuseboard-drain"
            )
        return self._task

    async def _report_all(self, orphans: bool) -> None:
        async with self._turn:
            if self._stopped:
                return
            if await self._report_closed():
                # Only now. Otherwise a store that refuses reports would make more and more segments.
                if self.journal is not None:
                    self.journal.flush_soon()
                self._offline.close()
                await self._report_closed()
            if self._offline.closed:
                self.noted()
            elif orphans and self.journal is not None:
                for orphan in await self.journal.orphans():
                    if await self._report(orphan):
                        self.adopted += 1
                        self.journal.forget(orphan.name)

    async def _report_closed(self) -> bool:
        for segment in list(self._offline.closed):
            if not await self._report(segment):
                return False
            self._offline.closed.remove(segment)
            self.reported += 1
            if self.journal is not None:
                self.journal.forget(segment.name)
        return True

    async def _report(self, segment: Segment) -> bool:
        """Report one segment. ``True`` when every domain has it, from now or from before."""
        domains: dict[str, list[str]] = defaultdict(list)
        for key in segment.totals:
            name = key.decode()
            domains[keys.offline_totals(name)].append(name)
        every = list(domains.values())
        for first in range(0, len(every), TOGETHER):
            answers = [self._ask(segment, names) for names in every[first : first + TOGETHER]]
            done, late = await asyncio.wait(answers, timeout=ANSWER_S)
            if late or any(self._failed(answer.result()) for answer in done):
                return False
        return True

    def _ask(self, segment: Segment, names: list[str]) -> asyncio.Future[Reply]:
        totals, limits = fields_of(segment, names)
        told, store_us = keys.offline_told(names[0]).encode(), self._health.store_time_us()
        asked = segment.asked.get(told)
        if asked is None:
            refs = list(self._charges(segment, limits))
            asked = segment.asked[told] = Asked(refs, store_us, dict(segment.corrected))
        charged = [(ref, amount) for ref, amount in asked.refs if amount]
        rules = RuleBook(1.0, asked.store_us)
        numbers: list[int] = []
        for ref, amount in charged:
            numbers += (rules.number(ref.limit), amount)
        left = budgets_of(segment, names, store_us)
        for rule, amount in left.values():
            numbers += (rules.add(rule), amount)
        script_keys = (
            told,
            keys.offline_totals(names[0]).encode(),
            *(ref.key for ref, _ in charged),
            *left,
        )
        blob = msgpack_encode([rules.numbers, totals, *numbers])
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def answered(reply: Reply) -> None:
            # Counted now, or by an earlier report whose answer did not come.
            if reply in (0, 1) and not asked.counted:
                asked.counted = True
                for ref, amount in asked.refs:
                    since = segment.corrected.get(ref.key, 0) - asked.corrected.get(ref.key, 0)
                    at_us = store_us if reply == 1 else asked.store_us
                    if _is_over(ref, asked.store_us, store_us):
                        # All of it belongs to the period of the first report, and nothing to this one.
                        amount, since, at_us = 0, 0, asked.store_us
                    self._local.charged(ref, amount, since, Reported(segment.until, at_us))
            for key in left:
                self._local.adopted(key)
            if not answer.done():
                answer.set_result(reply)

        arguments = (segment.name, 2 * KEPT_S, TOTALS_KEPT_S, blob)
        self._store.run(DRAIN, script_keys, arguments, answered)
        return answer

    def _charges(self, segment: Segment, limits: dict[str, int]) -> Iterable[tuple[LimitRef, int]]:
        """The charges of this pod to its shares that still count; 0 if all was given back.

        A call can cost more again before the answer: that is charged with it.
        """
        for limit, amount in limits.items():
            ref = segment.spent.get(limit.encode())
            if ref is not None and not ref.limit.shadow:
                amount += segment.corrected.get(ref.key, 0)
                if amount <= 0:
                    yield ref, 0
                elif counts := min(amount, self._local.still_spent(ref)):
                    yield ref, counts

    def _failed(self, reply: Reply) -> bool:
        if isinstance(reply, NotServedError):
            return True
        if isinstance(reply, Exception):
            logger.warning("journal.not_told: %s; it is retried", reply)
            return True
        return False


def _is_over(ref: LimitRef, asked_us: int, now_us: int) -> bool:
    """Whether the calendar period of the first question has ended."""
    period = ref.limit.period
    return period is not None and period_around(asked_us, period, ref.limit.time_zone)[1] <= now_us


def budgets_of(
    segment: Segment, names: Iterable[str], store_us: int
) -> dict[bytes, tuple[tuple[int, ...], int]]:
    """By counter: the rule and the amount of each budget that the pod which left this segment spent alone.

    This pod may not know the budget, but its span of time is its period, and a charge needs no more.
    """
    charges: dict[bytes, tuple[tuple[int, ...], int]] = {}
    for name in names if segment.adopted else ():
        part = read_part(name)
        if part is None or not keys.is_budget(part.limit):
            continue
        began_us, ends_us = part.start_s * 1_000_000, (part.start_s + part.length_s) * 1_000_000
        if began_us <= store_us < ends_us:
            key, rule = part.limit.encode(), rule_of_period(began_us, ends_us)
            charges[key] = rule, segment.totals[name.encode()] + charges.get(key, (rule, 0))[1]
    return charges


def fields_of(segment: Segment, names: Iterable[str]) -> tuple[list[str | int], dict[str, int]]:
    """Fields and amounts for the totals of one domain, and the sum of each limit.

    The sum goes to the field of the limit, as in version 0.1, and each span of time to a field of its own.
    """
    fields: list[str | int] = []
    limits: dict[str, int] = defaultdict(int)
    for name in names:
        amount = segment.totals[name.encode()]
        limit, timed, _ = name.partition("@")
        limits[limit] += amount
        if timed:
            fields += (keys.offline_field(name), amount)
    for limit, amount in limits.items():
        fields += (keys.offline_field(limit), amount)
    return fields, dict(limits)
