"""One question to Redis about one domain, and what its callers are told."""

import asyncio
from time import monotonic
from typing import Protocol

from fuseboard.store.connection import Word

# Verdicts of ``admit.lua``.
ADMITS, PROBES, OPEN, PROBE_BUSY, FORCED_OPEN, BYPASS, LATE = range(7)


class Answer:
    """What one group of like calls is told. Shared by all callers it applies to."""

    __slots__ = ("blocked", "generation", "granted", "left", "token", "verdict", "wait_us")

    def __init__(
        self,
        *,
        granted: bool,
        verdict: int,
        generation: int,
        blocked: int,
        wait_us: int,
        left: tuple[int, ...],
    ) -> None:
        self.granted = granted
        self.verdict = verdict
        self.generation = generation
        #: The limit that refused, by index; -1 the breaker; meaningless when granted.
        self.blocked = blocked
        self.wait_us = wait_us
        #: Calls left per limit.
        self.left = left
        self.token = ""


#: ``None`` in place of an answer: Redis did not answer in time, decide locally.
Caller = asyncio.Future[Answer | None]


class Domain(Protocol):
    """What a question is about. ``gathering`` and ``in_flight`` belong to the batcher."""

    gathering: "Question | None"
    in_flight: "Question | None"

    def script_keys(self) -> tuple[bytes, ...]: ...
    def script_head(self, token: str) -> tuple[Word, ...]:
        """The arguments before the groups, ``not_after`` left out."""
        ...

    def limit_count(self) -> int: ...
    def learned(self, verdict: int, generation: int, wait_us: int) -> None:
        """Redis answered in time; ``verdict`` is about the domain as a whole."""
        ...

    def came_late(self, generation: int, tokens: tuple[str, ...]) -> None:
        """These permits were granted to callers who no longer wait for them."""
        ...


class Question:
    """One batch: callers grouped by cost, in order of arrival."""

    __slots__ = ("begun", "calls", "deadline", "domain", "groups", "held", "over", "sent_at", "token")

    def __init__(self, domain: Domain, deadline_s: float, token: str) -> None:
        self.domain = domain
        self.groups: dict[int, list[Caller]] = {}
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

    def tell_all(self, answer: Answer | None) -> None:
        self.over = True
        for callers in self.groups.values():
            for caller in callers:
                if not caller.done():
                    caller.set_result(answer)
