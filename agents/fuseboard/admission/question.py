"""One question to Redis about one domain, and what its callers are told."""

import asyncio
from time import monotonic
from typing import Protocol

import msgspec

from fuseboard.admission.demand import Demand, RuleBook
from fuseboard.contract.policy import Limit
from fuseboard.decision import Decision

# Verdicts of ``admit.lua``.
ADMITS, PROBES, OPEN, PROBE_BUSY, FORCED_OPEN, BYPASS, LATE, COOLING_DOWN, SLOW_START = range(9)


#: The breaker's part of a question; empty when the domain has none.
Guard = tuple[int | str, ...]

msgpack_encode = msgspec.msgpack.Encoder().encode


class Answer:
    """What one group of like calls is told. Shared by all callers it applies to, unless it has a token."""

    __slots__ = (
        "at_us",
        "blocked",
        "calls",
        "decision",
        "generation",
        "granted",
        "left",
        "token",
        "verdict",
        "wait_us",
    )

    def __init__(
        self,
        *,
        granted: bool,
        verdict: int,
        generation: int,
        at_us: int,
        left: tuple[int, ...],
        blocked: int = 0,
        wait_us: int = 0,
        token: str = "",
        calls: int = 1,
    ) -> None:
        self.granted = granted
        self.verdict = verdict
        self.generation = generation
        #: Store time of the decision.
        self.at_us = at_us
        #: Calls left per limit of the demand.
        self.left = left
        #: The limit of the demand that refused, counted from 1; -1 the breaker; 0 when granted.
        self.blocked = blocked
        self.wait_us = wait_us
        #: Of a probe, or of a call that holds a slot.
        self.token = token
        #: How many calls it is leave for.
        self.calls = calls
        #: What the first caller made of it; all who share the answer share that too.
        self.decision: Decision | None = None

    def with_token(self, token: str) -> "Answer":
        """The same, for the one caller who holds this token."""
        return Answer(
            granted=self.granted,
            verdict=self.verdict,
            generation=self.generation,
            at_us=self.at_us,
            left=self.left,
            token=token,
        )


#: ``None`` in place of an answer: Redis did not answer in time, decide locally.
Caller = asyncio.Future[Answer | None]


class Domain(Protocol):
    """What a question is about. ``gathering`` and ``in_flight`` belong to the batcher."""

    gathering: "Question | None"
    in_flight: "Question | None"

    def guard(self) -> tuple[tuple[bytes, ...], Guard]:
        """Keys and arguments of the breaker; both empty when the domain has none."""
        ...

    def learned(self, verdict: int, generation: int, wait_us: int) -> None:
        """Redis answered in time; ``verdict`` is about the domain as a whole."""
        ...

    def unused(self, demand: Demand, answer: Answer) -> None:
        """This was granted to a caller who no longer waits for it."""
        ...


class Question:
    """One batch: callers grouped by what they ask for, in order of arrival."""

    __slots__ = (
        "begun",
        "calls",
        "deadline",
        "domain",
        "groups",
        "held",
        "limits",
        "numbers",
        "over",
        "sent_at",
        "token",
    )

    def __init__(self, domain: Domain, deadline_s: float, token: str) -> None:
        self.domain = domain
        self.groups: dict[Demand, list[Caller]] = {}
        #: Every counter of the groups: by key its number from 1, in order its limit. A counter
        #: stands once, or what one group spends would be overwritten by what the next one does.
        self.numbers: dict[bytes, int] = {}
        self.limits: list[Limit] = []
        self.calls = 0
        #: When its first caller came, and until when that one waits at most; monotonic seconds.
        self.begun = monotonic()
        self.deadline = self.begun + deadline_s
        self.token = token
        self.sent_at = 0.0
        #: It waits behind an earlier question about the same domain.
        self.held = False
        #: Every caller has been told something.
        self.over = False

    def join(self, demand: Demand, caller: Caller) -> None:
        callers = self.groups.get(demand)
        if callers is None:
            callers = self.groups[demand] = []
            for ref in demand.refs:
                if ref.key not in self.numbers:
                    self.limits.append(ref.limit)
                    self.numbers[ref.key] = len(self.limits)
        callers.append(caller)
        self.calls += 1

    def most_important_first(self) -> None:
        """Bring the groups into the order in which they are served; it is the order of the reply."""
        if len(self.groups) > 1:
            self.groups = dict(sorted(self.groups.items(), key=lambda group: -group[0].priority))

    def encode(self, not_after: int, guard: Guard, part: float, now_us: int) -> bytes:
        """The whole question, as ``admit.lua`` takes it."""
        rules = RuleBook(part, now_us)
        limits = [rules.number(limit) for limit in self.limits]
        words: list[int | str] = [not_after, self.token, *(guard or (0,))]
        words.append(len(rules.numbers) // 6)
        words += rules.numbers
        words.append(len(limits))
        words += limits
        numbers = self.numbers
        for demand, callers in self.groups.items():
            words += (demand.priority, demand.bulk or len(callers), len(demand.refs))
            for ref, cost in zip(demand.refs, demand.costs, strict=True):
                words += (numbers[ref.key], cost)
        return msgpack_encode(words)

    def tell_all(self, answer: Answer | None) -> None:
        self.over = True
        for callers in self.groups.values():
            for caller in callers:
                if not caller.done():
                    caller.set_result(answer)
