"""The questions of one backlog to Redis, and their answers."""

import asyncio
from collections.abc import Callable
from secrets import token_hex
from time import monotonic
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from fuseboard.admission.call_admission import CallAdmission
from fuseboard.backlog.envelopes import Envelopes
from fuseboard.backlog.options import Options
from fuseboard.batching.demand import is_slot, most_in_redis, rule_of
from fuseboard.batching.encoding import RULE_ELEMENTS, Piece, join_array, msgpack_encode, numbered_rule
from fuseboard.batching.redis_question import (
    COOLING_DOWN,
    FORCED_OPEN,
    LATE,
    OPEN,
    PROBE_BUSY,
    PROBES,
    SLOW_START,
)
from fuseboard.contract import keys
from fuseboard.contract.backlog_figures import BacklogFigures
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import (
    BACKLOG_CHANGE,
    BACKLOG_END,
    BACKLOG_LOOK,
    BACKLOG_SUBMIT,
    BACKLOG_TAKE,
    Script,
)
from fuseboard.contract.words import BreakerState
from fuseboard.decision import Account, Charge, Permit
from fuseboard.errors import StoreUnavailable
from fuseboard.reporting.seals import Seals
from fuseboard.store.pipelined_connection import settles
from fuseboard.store.store import NotServedError, Reply, Store, Word
from fuseboard.subject import Costs

#: Answers of ``backlog_submit.lua``.
ACCEPTED, KNOWN, FINISHED, TOO_MANY_JOBS, TOO_MANY_BYTES, NO_MEMORY = range(6)
#: The verdict of ``backlog_take.lua`` when no job was ready.
NONE_READY = -1
#: How a job ends: arguments of ``backlog_end.lua``.
DONE, RETRY, DEAD, RELEASE = 1, 2, 3, 4
#: The answer of ``backlog_end.lua`` for a job of another worker, or one that ended before.
NOT_OURS = 0
#: The changes that ``backlog_change.lua`` makes.
CANCEL, REVIVE = 1, 2

#: A limit of 0 is looked at again after this time.
PAUSED_S = 1.0
#: The caller stops waiting after this time. The connection still reads a late answer.
PATIENCE_S = 2.0


class NotRun(StoreUnavailable):
    """The question never reached Redis."""


class Row(NamedTuple):
    """One job in the reply of ``backlog_take.lua``. Times are store time in us."""

    job_id: str
    fence: int
    tries: int
    token: str
    lease_end: int
    submitted: int
    deadline: int
    priority: int
    tenant: str
    #: Measure, amount, measure, amount, and so on.
    costs: list[str | int]


class Head(Struct, array_like=True, frozen=True):
    """The first part of the reply of ``backlog_take.lua``, which describes every field."""

    verdict: int
    generation: int
    now_us: int
    rest: str
    wait_us: int
    next_us: int
    again: int
    jobs: list[Row]


class Granted(NamedTuple):
    row: Row
    payload: bytes
    permit: Permit
    #: When the lease ends; monotonic seconds.
    until: float


class Taken(NamedTuple):
    """The jobs that a worker may send now, and when to ask again. Times are seconds from now."""

    jobs: list[Granted]
    #: The breaker refuses, or a limit is 0.
    refused: bool
    #: When limits or the breaker may let a job pass; 0 if that is unknown, or if no job is ready.
    wait_s: float
    #: When a job is due, or a lease ends; 0 for none.
    next_s: float
    #: Asking again at once can bring more jobs.
    again: bool


_decode_head = msgspec.msgpack.Decoder(Head).decode


class BacklogScripts:
    """Asks Redis about one backlog. Use it on the agent's event loop only."""

    def __init__(
        self,
        calls: CallAdmission,
        store: Store,
        dependency: str,
        options: Options,
        seals: Callable[[], Seals],
    ) -> None:
        self.calls = calls
        self.envelopes = Envelopes(seals, dependency, used=options.sealed)
        self._store = store
        self.dependency = dependency
        self.options = options
        self.keys = tuple(
            keys.backlog(calls.environment, dependency, part).encode() for part in keys.BACKLOG_PARTS
        )
        self.channel = keys.backlog_channel(calls.environment)
        self._prefix = f"{token_hex(4)}-"
        self._takes = 0

    # The limits of the dependency, without those of tenants

    def limits(self) -> list[Limit]:
        """The limits that apply to a job, which has no caller and no endpoint, and calls for no tenant."""
        vendor = self.calls.breakers[self.dependency].dependency.vendor_limits
        return [limit for limit in vendor if not (limit.per or limit.endpoints or limit.dependency)]

    def slots(self) -> tuple[tuple[str, ...], list[str | int]]:
        """The keys of limits that count slots; and for each, one after the other, its measure and how long a
        slot lasts in us.
        """
        slots = [limit for limit in self.limits() if is_slot(limit)]
        return (
            tuple(self._limit_key(limit) for limit in slots),
            [part for limit in slots for part in (limit.measure, limit.window_ms * 1000)],
        )

    def impossible_limit(self, costs: Costs) -> Limit | None:
        """A limit that can never admit these costs in Redis."""
        amounts = dict(costs)
        for limit in self.limits():
            if not limit.shadow and amounts.get(limit.measure, 0) > most_in_redis(limit):
                return limit
        return None

    def _limit_key(self, limit: Limit) -> str:
        return keys.vendor_limit(self.calls.environment, self.dependency, limit.name)

    # The questions

    async def submit(self, asked: list[object], payload: bytes) -> list[int]:
        """``backlog_submit.lua`` describes ``asked``, which begins with the id of the job, and the reply."""
        kept = self.envelopes.close("payload", str(asked[0]), payload)
        if kept is None:
            raise NotRun("no gateway has given a key to seal the payload with yet")
        reply = await self._ask(BACKLOG_SUBMIT, self.keys, (msgpack_encode(asked), kept))
        if not isinstance(reply, list) or len(reply) != 4 or not all(type(part) is int for part in reply):
            raise StoreUnavailable(f"backlog_submit was answered with {reply!r:.80}")
        return reply

    async def change(self, job_id: str, what: int) -> int:
        result_us = int(self.options.result_s * 1e6)
        reply = await self._ask(
            BACKLOG_CHANGE, self.keys, (job_id, what, result_us, self.channel, self.dependency)
        )
        return _number(reply, "backlog_change")

    async def end(
        self, job_id: str, fence: int, how: int, *, delay_s: float, result: bytes, cause: str
    ) -> int:
        """The answer of ``backlog_end.lua``."""
        if how == DONE:
            # The job was done, and must not run again. Without a key, its result is lost: no reader can open
            # an empty text.
            result = self.envelopes.close("result", job_id, result) or b""
        slot_keys, slots = self.slots()
        asked = [job_id, fence, how, int(delay_s * 1e6), int(self.options.result_s * 1e6), cause]
        question = msgpack_encode([*asked, self.channel, self.dependency, slots[::2]])
        keys = (*(key.encode() for key in slot_keys), *self.keys)
        reply = await self._ask(BACKLOG_END, keys, (question, result))
        return _number(reply, "backlog_end")

    async def look(self, *ids: str) -> tuple[BacklogFigures, list[bytes]]:
        """The figures of ``backlog_look.lua``, and the state of each job."""
        reply = await self._ask(BACKLOG_LOOK, self.keys, ids)
        try:
            head, *states = msgspec.convert(reply, list[Any])
            return msgspec.convert(head, BacklogFigures), msgspec.convert(states, list[bytes])
        except ValueError as error:
            raise StoreUnavailable(f"backlog_look was answered with {reply!r:.80}: {error}") from None

    async def take(self, most: int) -> Taken:
        """Ask for jobs that may be sent now."""
        calls, breaker = self.calls, self.calls.breakers[self.dependency]
        sent_at, limits = monotonic(), self.limits()
        if any(limit.limit == 0 and not limit.shadow for limit in limits):
            breaker.release_local_probe(breaker.tally)
            # A limit is 0: the vendor is paused.
            return Taken(jobs=[], refused=True, wait_s=PAUSED_S, next_s=0.0, again=False)
        named = tuple(self._limit_key(limit).encode() for limit in limits)
        guard_keys, guard = breaker.put(named)
        question = self._take_question(limits, guard, most)
        tally = breaker.tally
        breaker.refusals.begin_change(named)
        try:
            # It waits without a time limit, because a late answer may contain jobs.
            reply = await self._ask(BACKLOG_TAKE, guard_keys + self.keys, question, patience_s=None)
            if not isinstance(reply, list) or not reply:
                raise StoreUnavailable(f"backlog_take was answered with {reply!r:.80}")
            head = _decode_head(reply[0])
        except (msgspec.DecodeError, TypeError) as error:
            breaker.release_local_probe(tally)
            raise StoreUnavailable(f"backlog_take was answered with garbage: {error}") from None
        except StoreUnavailable:
            breaker.release_local_probe(tally)
            raise
        finally:
            breaker.refusals.end_change(named)
            breaker.refusals.forget_counters(named)
        calls.health.answered(head.now_us)
        decided = head.verdict not in (NONE_READY, LATE)
        refused = decided and not head.jobs and breaker_refuses(head.verdict)
        if decided:
            breaker.learned(head.verdict, head.generation, head.wait_us if refused else 0, head.rest, sent_at)
        if not head.jobs:
            breaker.release_local_probe(tally)
        jobs = [self._granted(head, row, payload) for row, payload in zip(head.jobs, reply[1:], strict=True)]
        next_s = max(0.0, (head.next_us - head.now_us) / 1e6) if head.next_us else 0.0
        return Taken(
            jobs=jobs, refused=refused, wait_s=head.wait_us / 1e6, next_s=next_s, again=bool(head.again)
        )

    def _take_question(self, limits: list[Limit], guard: Piece, most: int) -> tuple[bytes, bytes]:
        """The two arguments of ``backlog_take.lua``, which describes them."""
        health = self.calls.health
        part, now_us = health.rounded_shared_part, health.store_time_us()
        rules: dict[int, bytes] = {}
        wanted: list[object] = []
        for limit in limits:
            number, text = numbered_rule(rule_of(limit, part, now_us))
            rules[number] = text
            wanted += [limit.measure, number, most_in_redis(limit), int(is_slot(limit))]
        self._takes += 1
        question = join_array(
            3 + guard.elements + RULE_ELEMENTS * len(rules),
            msgpack_encode(now_us and now_us + int(PATIENCE_S * 1e6)),
            msgpack_encode(f"{self._prefix}{self._takes}"),
            guard.text,
            msgpack_encode(len(rules)),
            *rules.values(),
        )
        more = [most, int(self.options.lease_s * 1e6), int(self.options.result_s * 1e6), wanted]
        return question, msgpack_encode(more)

    def _granted(self, head: Head, row: Row, payload: bytes) -> Granted:
        calls = self.calls
        breaker = calls.breakers[self.dependency]
        costs = tuple(zip(map(str, row.costs[::2]), map(int, row.costs[1::2]), strict=True))
        demand = breaker.demand(costs)
        decision = calls.decisions.allow(
            calls.configuration.snapshot,
            demand.statuses(),
            dependency=self.dependency,
            charges=(
                Charge(breaker.domain, demand, head.now_us, row.token, account=Account(calls.decisions)),
            ),
        )
        made = Permit(
            made=decision,
            dependency=self.dependency,
            generation=head.generation,
            token=row.token,
            local_generation=breaker.local.generation,
            state=BreakerState.HALF_OPEN if head.verdict == PROBES else BreakerState.CLOSED,
        )
        permit = calls.probes.begin(breaker, made)
        decided_at = calls.health.decided_at(head.now_us, 0.0)
        return Granted(row, payload, permit, decided_at + (row.lease_end - head.now_us) / 1e6)

    async def _ask(
        self,
        script: Script,
        keys: tuple[bytes, ...],
        arguments: tuple[Word, ...],
        patience_s: float | None = PATIENCE_S,
    ) -> Reply:
        """The reply. Raises ``StoreUnavailable``, or ``NotRun`` if Redis surely did nothing.

        ``None`` for ``patience_s`` waits until the connection answers or breaks.
        """
        calls = self.calls
        if not calls.health.usable:
            raise NotRun(calls.health.cause)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._store.run(script, keys, arguments, settles(future))
        try:
            async with asyncio.timeout(patience_s):
                reply = await future
        except TimeoutError:
            raise StoreUnavailable(f"no answer within {patience_s} s") from None
        if isinstance(reply, NotServedError):
            raise NotRun(str(reply))
        if isinstance(reply, Exception):
            raise StoreUnavailable(f"{script.name}: {reply}")
        return reply


def breaker_refuses(verdict: int) -> bool:
    """Whether the breaker, and no limit, refuses."""
    return verdict in (OPEN, PROBE_BUSY, FORCED_OPEN, COOLING_DOWN, SLOW_START)


def _number(reply: Reply, script: str) -> int:
    if not isinstance(reply, int):
        raise StoreUnavailable(f"{script} was answered with {reply!r:.80}")
    return reply
