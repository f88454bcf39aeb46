"""All callers of one event-loop tick share one question to Redis per domain.

A domain is one dependency, or all requests to the service (in a Cluster: those of one tenant). One script
call decides about one domain, atomically. One question per domain is in flight while
the next one gathers callers.

The deadline of a question starts when its first caller arrives, whether it is sent or not. Nothing is ever
cancelled: after the deadline, callers decide locally, and the late answer is still read, because it says what
was consumed.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable
from time import monotonic
from typing import Protocol

import msgspec

from fuseboard.batching.deadlines import LOOP_LAG_S, Deadlines
from fuseboard.batching.demand import Demand
from fuseboard.batching.distribute import distribute_all, distribute_scarce, tally_shadows
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.batching.redis_question import (
    ADMITS,
    BYPASS,
    LATE,
    PROBES,
    Caller,
    Domain,
    Question,
    decode_reply,
)
from fuseboard.contract.policy import Tuning
from fuseboard.contract.scripts import ADMIT
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import ConnectionLostError, Reply, Store

#: The most calls of one group, and the most groups, in one question. A group is the callers with the same
#: demand. Further calls go into the next question.
MAX_CALLS = 1000
MAX_GROUPS = 250
#: The most limits in one question, each counted once per group. ``fair_split.lua`` takes 20,000.
MAX_PAIRS = 10_000


class StoreMeter(Protocol):
    """Counts the answers, timeouts and errors of the store."""

    def store_answer(self, latency_us: int) -> None: ...
    def store_timeout(self) -> None: ...
    def store_error(self) -> None: ...


class Batcher:
    def __init__(
        self,
        *,
        store: Store,
        health: StoreHealth,
        meter: StoreMeter,
        tuning: Callable[[], Tuning],
        token_prefix: str,
        spending: KnownSpending,
    ) -> None:
        self._store = store
        self._health = health
        self._meter = meter
        self._tuning = tuning
        self._token_prefix = token_prefix
        self._spending = spending
        self._questions = 0
        self._ready: list[Domain] = []
        self._scheduled = False
        #: By how long questions of the domain wait, in ms; 0 is the deadline of the fleet.
        self._deadlines: dict[int, Deadlines] = {}
        # Kept from the first question on: looking it up is a system call in Python 3.11.
        self._loop: asyncio.AbstractEventLoop

    def ask(self, domain: Domain, demand: Demand) -> Caller:
        """Join the question about ``domain`` that gathers callers now."""
        question = domain.gathering
        if question is not None:
            callers = question.groups.get(demand)
            if callers is not None and len(callers) < MAX_CALLS:
                caller: Caller = Future(loop=self._loop)
                callers.append(caller)
                return caller
        return self._ask_first(domain, demand)

    def _ask_first(self, domain: Domain, demand: Demand) -> Caller:
        """Join as the first caller of its group."""
        question = domain.gathering
        # A demand that is in the question already has a full group.
        pairs = len(demand.refs)
        if (
            question is None
            or demand in question.groups
            or len(question.groups) >= MAX_GROUPS
            or question.pairs + pairs > MAX_PAIRS
        ):
            question = self._begin(domain)
        question.pairs += pairs
        caller: Caller = Future(loop=self._loop)
        question.groups[demand] = [caller]
        if question.eager:
            domain.gathering = None
            self._send(domain, question)
        return caller

    def close(self) -> None:
        """Let all waiting callers decide locally."""
        for deadlines in self._deadlines.values():
            deadlines.close()

    def _begin(self, domain: Domain) -> Question:
        if not self._questions:
            self._loop = asyncio.get_running_loop()
        self._questions += 1
        question = Question(domain, self._wait_s(domain), f"{self._token_prefix}{self._questions}")
        if domain.gathering is not None:  # full: send it now, although another one is in flight
            self._send(domain, domain.gathering)
        domain.gathering = question
        self._watch(question)
        question.waits = domain.in_flight is not None
        # The last caller came alone. Expect the same, and do not wait for the end of the tick.
        question.eager = domain.lonely and not question.waits
        if not question.waits and not question.eager:
            self._schedule(domain)
        return question

    def _wait_s(self, domain: Domain) -> float:
        """How long a question waits for its answer: never shorter than the deadline of the fleet."""
        usual_s = self._tuning().store_deadline_us / 1_000_000
        return max(usual_s, domain.store_wait_ms / 1000) if domain.store_wait_ms else usual_s

    def _watch(self, question: Question) -> None:
        wait_ms = question.domain.store_wait_ms
        deadlines = self._deadlines.get(wait_ms)
        if deadlines is None:
            deadlines = self._deadlines[wait_ms] = Deadlines(self._health, self._give_up)
        deadlines.watch(question, self._loop)

    def _schedule(self, domain: Domain) -> None:
        self._ready.append(domain)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        ready, self._ready = self._ready, []
        for domain in ready:
            question = domain.gathering
            if question is not None and domain.in_flight is None:
                domain.gathering = None
                self._send(domain, question)

    def _send(self, domain: Domain, question: Question) -> None:
        if question.over:
            return
        if not self._health.usable:
            question.answer_all(None)
            return
        domain.in_flight = question
        question.sent_at = monotonic()
        if not question.waits and question.sent_at - question.begun > LOOP_LAG_S:
            # The loop was busy between the first caller and this tick. Redis gets its full time.
            question.deadline = question.sent_at + self._wait_s(domain)
            self._watch(question)
        now_us = self._health.store_time_us()
        # 0: the store's time is not known, so that there is no deadline.
        not_after = now_us + int((question.deadline - question.sent_at) * 1_000_000) if now_us else 0
        domain.lonely = len(question.groups) == 1 and question.calls == 1
        part = self._health.rounded_shared_part
        if part < 1:
            for demand in question.groups:
                self._spending.set_spent(demand, now_us)
        keys, text = question.write(not_after, part, now_us)
        domain.refusals.begin_change(question.changes)
        self._store.run(ADMIT, keys, (text,), lambda reply: self._answered(question, reply))

    def _answered(self, question: Question, reply: Reply) -> None:
        domain = question.domain
        late, question.answered = question.over, True
        try:
            if isinstance(reply, Exception):
                # The script may have run, so what is remembered may be wrong.
                domain.refusals.forget_counters(question.changes)
                self._complain(reply)
            elif not self._distribute(question, reply, late=late):
                self._health.failed("an answer that does not parse")
                self._meter.store_error()
        finally:
            domain.refusals.end_change(question.changes)
            if not question.over:
                question.answer_all(None)
            question.groups = {}  # the question may stay in the queue of deadlines; its callers need not
            if domain.in_flight is question:
                domain.in_flight = None
                if domain.gathering is not None:
                    # The callers woken now may ask again in this tick: let them join.
                    self._schedule(domain)

    def _complain(self, error: Exception) -> None:
        self._meter.store_error()
        if not isinstance(error, ConnectionLostError):  # a lost connection was counted when it broke
            self._health.failed(f"{type(error).__name__}: {error}")

    def _distribute(self, question: Question, reply: Reply, *, late: bool) -> bool:
        """Distribute what was granted, in order of arrival. ``False`` when ``reply`` does not parse."""
        try:
            decoded = decode_reply(reply)  # type: ignore[arg-type] # a wrong type raises TypeError
        except (msgspec.DecodeError, TypeError):
            return False
        verdict, figures = decoded.verdict, decoded.figures
        if verdict == LATE:
            self._health.answered(decoded.now_us)
            return True
        groups, counters = len(question.groups), question.counters
        decides = verdict in (ADMITS, BYPASS, PROBES)
        # The short answer grants everything, with one figure for each counter. The full answer has three for
        # each group, and three for each counter.
        complete = decides and len(figures) == counters
        if not complete and len(figures) != 3 * groups + 3 * counters:
            return False
        self._health.answered(decoded.now_us)
        if not late:
            self._meter.store_answer(int((monotonic() - question.sent_at) * 1_000_000))
            wait_us = decoded.wait_us
            if wait_us:
                passed_s = monotonic() - self._health.decided_at(decoded.now_us, question.sent_at)
                wait_us = max(1, wait_us - int(passed_s * 1_000_000))
            question.domain.learned(verdict, decoded.generation, wait_us, decoded.rest, question.sent_at)
        question.over = True
        if complete:
            distribute_all(question, decoded)
        else:
            # During a ramp, Redis decides only a part of each limit: its refusals are not remembered.
            decided = self._health.decided_at(decoded.now_us, question.sent_at)
            distribute_scarce(question, decoded, decided, remember=question.part >= 1.0)
            tally_shadows(question, decoded)
        # A breaker that refuses reads no limits. During a ramp, less is left of a limit than pods may spend.
        for demand in question.groups if decides and question.part >= 1.0 else ():
            if demand.divides_what_is_left and not demand.only_asks:
                self._spending.learn(demand, decoded.now_us)
        return True

    def _give_up(self, question: Question) -> None:
        """Its callers decide locally, and the next question does not wait for its answer."""
        question.answer_all(None)
        self._meter.store_timeout()
        domain = question.domain
        if domain.in_flight is question:
            domain.in_flight = None
            if domain.gathering is not None:
                self._schedule(domain)
        elif domain.gathering is question:
            domain.gathering = None
