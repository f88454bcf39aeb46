"""One question to Redis about one domain, and the answers to its callers."""

import asyncio
from collections.abc import Collection
from copy import copy
from time import monotonic
from typing import Protocol

import msgspec
from msgspec import Struct

from fuseboard.batching.demand import Demand
from fuseboard.batching.encoding import GroupText, Piece, join_question
from fuseboard.batching.refusals import RememberedRefusals
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Decision

# Verdicts of ``admit.lua``.
ADMITS, PROBES, OPEN, PROBE_BUSY, FORCED_OPEN, BYPASS, LATE, COOLING_DOWN, SLOW_START = range(9)


class Reply(Struct, array_like=True, frozen=True, gc=False):
    """The reply of ``admit.lua``; see there."""

    verdict: int
    generation: int
    wait_us: int
    now_us: int
    rest: str
    figures: list[int]


#: Raises for a reply that ``admit.lua`` cannot have made.
decode_reply = msgspec.msgpack.Decoder(Reply).decode


class DecisionMaker(Protocol):
    """Makes the decision of an answer. ``CallLane`` is one."""

    def decision_of(self, answer: "RedisAnswer", mode: Mode) -> Decision: ...


class RedisAnswer:
    """The answer to one group of like calls. All its callers share it, unless it has a token."""

    __slots__ = (
        "at_us",
        "blocked",
        "calls",
        "decision",
        "generation",
        "granted",
        "left",
        "maker",
        "mode",
        "retry_at",
        "token",
        "uncounted",
        "verdict",
    )

    def __init__(
        self, reply: Reply, granted: bool, left: tuple[int, ...], blocked: int = 0, retry_at: float = 0.0
    ) -> None:
        self.granted = granted
        self.verdict = reply.verdict
        self.generation = reply.generation
        #: Store time of the decision.
        self.at_us = reply.now_us
        #: Calls left per limit of the demand.
        self.left = left
        #: The limit of the demand that refused, from 1; -1 for the breaker; 0 when granted.
        self.blocked = blocked
        #: When to ask again (monotonic seconds); 0 if waiting does not help.
        self.retry_at = retry_at
        #: The token of a probe, or of a call that holds a slot.
        self.token = ""
        #: Counters of shadow limits that had no room for all its calls, and so did not count some of them.
        self.uncounted: Collection[bytes] = ()
        #: How many calls it grants.
        self.calls = 1
        #: The decision of the first caller. All callers that share the answer share it too.
        self.decision: Decision | None = None
        #: The maker of that decision when it is first needed, and the mode at the time of the answer.
        self.maker: DecisionMaker | None = None
        self.mode = Mode.SHARED

    @property
    def wait_s(self) -> float:
        """The rest of the refusal; 0 when waiting does not help."""
        return max(0.000_001, self.retry_at - monotonic()) if self.retry_at else 0.0

    def decide(self) -> Decision:
        """The decision of one caller."""
        if self.decision is None:
            assert self.maker is not None  # noqa: S101 - the caller has set it
            self.decision = self.maker.decision_of(self, self.mode)
            return self.decision
        return self.decision.for_another_call()

    def with_token(self, token: str) -> "RedisAnswer":
        """Return this answer for the one caller that has this token."""
        own = copy(self)
        own.token = token
        return own


#: ``None`` instead of an answer: Redis did not answer in time, decide locally.
Caller = asyncio.Future[RedisAnswer | None]


class Domain(Protocol):
    """The subject of a question. The attributes belong to the batcher."""

    gathering: "Question | None"
    in_flight: "Question | None"
    #: The last question was of one caller only.
    lonely: bool
    #: How long a question waits for its answer; 0 for the deadline of the fleet.
    store_wait_ms: int
    #: Remembered refusals; a change of the same counter ends them.
    refusals: RememberedRefusals

    def put(self, keys: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], Piece]:
        """All keys of a question about limits with these ``keys``, and the breaker's part of the question."""
        ...

    def learned(self, verdict: int, generation: int, wait_us: int, rest: str, sent_at: float) -> None:
        """Redis answered a question of ``sent_at`` in time. ``verdict`` is about the domain as a whole.

        ``rest`` is the text of a breaker that is closed and unchanged, if the script read it. It ends in
        ``lost`` if Redis had lost the breaker that a pod knew.
        """
        ...

    def reason_of(self, limit: Limit) -> Reason:
        """The reason of a refusal by ``limit``."""
        ...

    def unused(self, demand: Demand, answer: RedisAnswer) -> None:
        """``answer`` was granted to a caller that no longer waits."""
        ...


class Question:
    """One batch: callers grouped by what they ask for, in order of arrival."""

    __slots__ = (
        "answered",
        "begun",
        "changes",
        "counters",
        "deadline",
        "domain",
        "eager",
        "groups",
        "over",
        "pairs",
        "part",
        "places",
        "sent_at",
        "token",
        "waits",
    )

    def __init__(self, domain: Domain, deadline_s: float, token: str) -> None:
        self.domain = domain
        self.groups: dict[Demand, list[Caller]] = {}
        #: The limits of all groups.
        self.pairs = 0
        #: The number of counters, and which of them each group asks for. Set when the question is sent.
        self.counters = 0
        self.places: list[tuple[int, ...]] = []
        #: The counters that it may charge. Set when it is sent.
        self.changes: set[bytes] = set()
        #: When the first caller came, and how long it waits at most; monotonic seconds.
        self.begun = monotonic()
        self.deadline = self.begun + deadline_s
        self.token = token
        self.sent_at = 0.0
        #: The part of each limit that it asks for. Set when it is sent.
        self.part = 1.0
        #: It waits behind an earlier question about the same domain.
        self.waits = False
        #: It is sent as soon as it has a caller.
        self.eager = False
        #: Every caller has an answer.
        self.over = False
        #: Redis replied, or the connection broke; maybe too late.
        self.answered = False

    @property
    def calls(self) -> int:
        return sum(map(len, self.groups.values()))

    def write(self, not_after: int, part: float, now_us: int) -> tuple[tuple[bytes, ...], bytes]:
        """Keys and text of the question, as ``admit.lua`` takes them."""
        self.part = part
        if len(self.groups) > 1:
            # Groups are served, and answered, in this order.
            self.groups = dict(sorted(self.groups.items(), key=lambda group: -group[0].priority))
        # Each counter is listed once. Otherwise a group would overwrite what the group before it spent.
        numbers: dict[bytes, int] = {}
        groups: list[tuple[GroupText, int]] = []
        for demand, callers in self.groups.items():
            seen, places = demand.find(numbers)
            groups.append((demand.text(seen, part, now_us), demand.bulk or len(callers)))
            self.places.append(places)
            if demand.remembered is None and not demand.only_asks:
                # Otherwise Redis refuses it again. If it counted, the calls of a flood would ask by turns,
                # and memory would answer none.
                self.changes.update(demand.keys)
        self.counters = len(numbers)
        keys, guard = self.domain.put(tuple(numbers))
        return keys, join_question(not_after, self.token, guard, groups)

    def answer_all(self, answer: RedisAnswer | None) -> None:
        self.over = True
        for callers in self.groups.values():
            for caller in callers:
                if not caller.done():
                    caller.set_result(answer)
