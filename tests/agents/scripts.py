"""The real scripts on a real server, in virtual time.

The shipped text runs with one difference: ``now`` is the last argument instead of ``TIME``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis

from fuseboard.batching.demand import RuleBook, rule_of
from fuseboard.batching.redis_question import decode_reply
from fuseboard.contract.breaker_state import StoredBreaker, parse_breaker
from fuseboard.contract.policy import BreakerPolicy, Limit
from fuseboard.contract.scripts import Script, read_script

VIRTUAL_CLOCK = "local now = tonumber(ARGV[#ARGV])\nARGV[#ARGV] = nil\n"

#: When virtual time begins: as many digits as the real clock has.
START_US = 1_790_000_000_000_000

VERDICTS = (
    "admits",
    "probes",
    "open",
    "probe_busy",
    "forced_open",
    "bypass",
    "late",
    "cooling_down",
    "slow_start",
)
CHANGES = ("none", "tripped", "reopened", "closed", "stale", "would_trip")


@dataclass(frozen=True)
class Group:
    granted: int
    blocked: int
    wait_us: int


@dataclass(frozen=True)
class Admitted:
    verdict: str
    generation: int
    wait_us: int
    now_us: int
    groups: list[Group]
    left: list[int]
    shadow_refused: list[int]
    unreadable: list[int]

    @property
    def granted(self) -> int:
        return sum(group.granted for group in self.groups)


@dataclass(frozen=True)
class Reported:
    change: str
    state: int
    generation: int
    remaining_us: int
    calls: int
    failures: int
    consecutive: int


@dataclass
class Store:
    """One domain: five guard keys and any limits."""

    client: redis.Redis
    limits: list[Limit] = field(default_factory=list)
    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    guarded: bool = False
    now_us: int = START_US
    #: The part of each limit that Redis decides for the asking pod, which ramps up; 1 for all of it.
    part: float = 1.0
    admit_script: Script = field(default_factory=lambda: read_script("admit", clock=VIRTUAL_CLOCK))
    report_script: Script = field(default_factory=lambda: read_script("report", clock=VIRTUAL_CLOCK))
    settle_script: Script = field(default_factory=lambda: read_script("settle", clock=VIRTUAL_CLOCK))
    drain_script: Script = field(default_factory=lambda: read_script("drain", clock=VIRTUAL_CLOCK))
    batches: int = 0
    #: Text and generation of the breaker when it was last seen at rest, as a server remembers it.
    known: tuple[object, int] = (0, 0)
    #: Whether all counters expire in virtual time, and not only calendar quotas; and when they do.
    expiring: bool = False
    expires_us: dict[str, int] = field(default_factory=dict)
    #: Ask whether it is the same store, as requests do; and what was seen last.
    incarnation: bool = False
    seen: object = 0

    GUARD = (
        "{d}:override",
        "{d}:breaker",
        "{d}:cooldown",
        "{d}:outcomes",
        "{d}:evidence",
        "{d}:transitions",
    )

    def limit_key(self, limit: Limit) -> str:
        return f"{{d}}:limit:{limit.name}"

    def admit(
        self,
        *groups: tuple[int, int],
        not_after: int = 0,
        server: str = "web-1",
        classes: tuple[int, ...] = (),
        period_at: int | None = None,
    ) -> Admitted:
        """Ask for groups of (count, cost); one call of cost 1 when none is given."""
        wanted = groups or ((1, 1),)
        self.batches += 1
        limits = [self.limit_key(limit) for limit in self.limits]
        keys = [*self.GUARD[:3], *limits, *self.GUARD[3:]] if self.guarded else limits
        guard: tuple[object, ...] = (0,)
        if self.incarnation:
            keys, guard = ["{d}:incarnation", *limits], (2, self.seen)
        if self.guarded:
            policy = self.policy
            times = (policy.probe_lease_ms * 1000, policy.open_max_ms * 1100, policy.slow_start_ms * 1000)
            guard = (1, policy.probes, *times, server, *self.known)
        rules: list[int] = []
        numbers = range(101, 101 + len(self.limits))
        for number, limit in zip(numbers, self.limits, strict=True):
            rule = rule_of(limit, self.part, period_at or self.now_us)
            rules += (number, *rule[: rule_length(self.admit_script)])
        asked: list[int] = []
        for position, (count, cost) in enumerate(wanted):
            asked += [classes[position] if classes else 50, count, len(self.limits)]
            for place, number in enumerate(numbers, start=1):
                asked += [place if position else 0, number, cost]
        question = (not_after, f"b{self.batches}", *guard, len(self.limits), *rules, *asked)
        reply = decode_reply(self._run(self.admit_script, keys, [msgspec.msgpack.encode(question)]))
        if reply.rest:
            self.seen, self.known = reply.rest, (reply.rest, reply.generation)
        head = (VERDICTS[reply.verdict], reply.generation, reply.wait_us, reply.now_us)
        count, figures = len(self.limits), reply.figures
        if head[0] == "late":
            return Admitted(*head, [], [], [], [])
        if len(figures) == count and head[0] in ("admits", "probes", "bypass"):
            rows = [Group(calls, 0, 0) for calls, _ in wanted]
            return Admitted(*head, rows, figures, [0] * count, [0] * count)
        rows = [Group(*figures[3 * i : 3 + 3 * i]) for i in range(len(wanted))]
        tail = figures[3 * len(wanted) :]
        return Admitted(*head, rows, tail[0::3], tail[1::3], tail[2::3])

    def report(
        self,
        generation: int,
        *,
        ok: int = 0,
        failure: int = 0,
        slow: int = 0,
        tail: int | None = None,
        probes: tuple[tuple[str, int], ...] = (),
        server: str = "web-1",
        jitter: int = 0,
        cooldown_us: int = 0,
    ) -> Reported:
        policy = self.policy
        arguments: list[object] = [server, generation, ok, failure, slow, failure if tail is None else tail]
        arguments += [policy.consecutive_failures, policy.failure_percent, policy.slow_percent]
        arguments += [policy.minimum_calls, policy.window_s, policy.minimum_servers]
        arguments += [
            policy.open_ms * 1000,
            policy.open_max_ms * 1000,
            policy.successes_to_close,
            jitter,
            cooldown_us,
            "breakers",
            "payments",
        ]
        if policy.window_calls:
            arguments += ["window_calls", policy.window_calls]
        for token, outcome in probes:
            arguments += [token, outcome]
        reply = self._run(self.report_script, [*self.GUARD, "{d}:cooldown_claim"], arguments)
        return Reported(CHANGES[reply[0]], *reply[1:4], *reply[5:])

    def settle(
        self,
        *,
        amount: int = 0,
        at: int | None = None,
        tokens: tuple[str, ...] = (),
        limit: Limit | None = None,
        most: int = -1,
    ) -> list[int]:
        """Correct the first limit, under this rule. ``most``: at most this is left, the vendor reports.

        Returns what is left, and what was charged because the vendor has less.
        """
        rules = RuleBook(self.part, self.now_us)
        number = rules.number(limit or self.limits[0])
        blob = msgspec.msgpack.encode(
            [
                rules.numbers[: rule_length(self.settle_script)],
                number,
                amount,
                self.now_us if at is None else at,
                tokens,
                most,
            ]
        )
        reply: list[int] = self._run(self.settle_script, [self.limit_key(self.limits[0])], [blob])
        return reply

    def drain(self, amount: int, segment: str) -> None:
        """Report what a pod spent alone of the first limit."""
        rules = RuleBook(1.0, self.now_us)
        number = rules.number(self.limits[0])
        numbers = rules.numbers[: rule_length(self.drain_script)]
        blob = msgspec.msgpack.encode([numbers, ["field", amount], number, amount])
        keys = ["{d}:reported", "{d}:totals", self.limit_key(self.limits[0])]
        self._run(self.drain_script, keys, [segment, 60, 60, blob])

    def breaker(self) -> StoredBreaker | None:
        text = self.client.get("{d}:breaker")
        return parse_breaker(text.decode() if isinstance(text, bytes) else None)

    def hold(self, mode: str, seconds: float, revision: int = 1) -> None:
        """An override as the control plane writes its key."""
        self.client.set("{d}:override", f"{mode} {self.now_us + int(seconds * 1_000_000)} {revision}")

    def advance(self, seconds: float) -> None:
        self.now_us += int(seconds * 1_000_000)

    def contents(self) -> dict[bytes, bytes | None]:
        """Every key, byte for byte."""
        return {key: self.client.dump(key) for key in self.client.keys("*")}

    def _run(self, script: Script, keys: list[str], arguments: list[object]) -> Any:
        calendars = [limit for limit in self.limits if self.expiring or limit.period is not None]
        expiring = [self.limit_key(limit) for limit in calendars]
        self._expire(expiring)
        reply = run_script(self.client, script, keys, [*arguments, self.now_us])
        self.expires_us = {
            key: self.now_us + remaining_ms * 1000
            for key in expiring
            if (remaining_ms := int(self.client.pttl(key))) >= 0
        }
        # Other keys expire in real time too, while virtual time stands still: what counts would be lost.
        for limit in self.limits:
            if limit not in calendars:
                self.client.persist(self.limit_key(limit))
        return reply

    def _expire(self, keys: Iterable[str]) -> None:
        """Let keys expire in virtual time: the key of a calendar quota says when its period ends."""
        for key in keys:
            if key in self.expires_us:
                self.client.pexpire(key, (self.expires_us[key] - self.now_us) // 1000)


def rule_length(script: Script) -> int:
    """The numbers of a rule. Scripts of earlier versions know no whole limit beside that of a ramp."""
    return 8 if "whole_size" in script.text else 6


def run_script(client: redis.Redis, script: Script, keys: list[str], arguments: list[Any]) -> Any:
    """The last argument is the time."""
    try:
        return client.evalsha(script.sha, len(keys), *keys, *arguments)
    except redis.exceptions.NoScriptError:
        return client.eval(script.text, len(keys), *keys, *arguments)
