"""The scripts of the backlog on a real server, in virtual time: one dependency with any limits."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import redis

from fuseboard.batching.demand import rule_of
from fuseboard.contract import keys
from fuseboard.contract.backlog_figures import BacklogFigures
from fuseboard.contract.policy import BreakerPolicy, Limit
from fuseboard.contract.scripts import Script, read_script
from fuseboard.contract.words import Algorithm
from tests.agents.scripts import START_US, VIRTUAL_CLOCK, run_script

SECOND = 1_000_000
SUBMITTED = ("accepted", "known", "finished", "many_jobs", "many_bytes", "no_memory")
HOW = {"done": 1, "retry": 2, "dead": 3, "release": 4}
NAMES = ("submit", "take", "keep", "end", "change", "look", "dead")


@dataclass(frozen=True)
class Taken:
    verdict: int
    wait_us: int
    next_us: int
    again: bool
    jobs: list[dict[str, Any]]

    @property
    def ids(self) -> list[str]:
        return [job["id"] for job in self.jobs]


@dataclass
class BacklogStore:
    client: redis.Redis
    limits: list[Limit] = field(default_factory=list)
    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    now_us: int = START_US
    scripts: dict[str, Script] = field(
        default_factory=lambda: {name: read_script(f"backlog_{name}", clock=VIRTUAL_CLOCK) for name in NAMES}
    )
    lease_us: int = 30 * SECOND
    result_us: int = 3600 * SECOND
    age_us: int = 60 * SECOND
    age_calls: int = 100
    fair: bool = False
    max_jobs: int = 10_000
    max_bytes: int = 64 << 20
    takes: int = 0
    environment: str = "t"
    dependency: str = "d"

    def __post_init__(self) -> None:
        self.keys = {
            part: keys.backlog(self.environment, self.dependency, part) for part in keys.BACKLOG_PARTS
        }
        named = (keys.override, keys.breaker, keys.cooldown, keys.outcomes, keys.evidence, keys.transitions)
        self.guard = [key(self.environment, self.dependency) for key in named]

    def limit_key(self, limit: Limit) -> str:
        return keys.vendor_limit(self.environment, self.dependency, limit.name)

    def submit(
        self,
        job_id: str,
        *,
        payload: bytes = b"x",
        tenant: str = "",
        priority: int = 5,
        delay_us: int = 0,
        deadline_us: int = 0,
        max_tries: int = 5,
        costs: dict[str, int] | None = None,
        max_memory: int = 70,
    ) -> str:
        flat = [part for pair in (costs or {"calls": 1}).items() for part in pair]
        asked = [job_id, tenant, priority, delay_us, deadline_us, max_tries, self.age_us, self.age_calls]
        asked += [
            int(self.fair),
            (costs or {}).get("calls", 1),
            flat,
            self.max_jobs,
            self.max_bytes,
            max_memory,
            "hints",
            "d",
        ]
        reply = self._run("submit", [], [msgspec.msgpack.encode(asked), payload])
        return SUBMITTED[reply[0]]

    def take(self, most: int = 1, *, not_after: int = 0) -> Taken:
        self.takes += 1
        policy, rules, limits = self.policy, [], []
        for number, limit in enumerate(self.limits, start=101):
            rule = rule_of(limit, 1.0, self.now_us)
            rules += [number, *rule]
            largest = rule[3] if limit.algorithm is Algorithm.TOKEN_BUCKET else rule[1]
            limits += [limit.measure, number, largest, int(limit.algorithm is Algorithm.CONCURRENCY)]
        times = (policy.probe_lease_ms * 1000, policy.open_max_ms * 1100, policy.slow_start_ms * 1000)
        asked = [
            not_after,
            f"t{self.takes}",
            1,
            policy.probes,
            *times,
            "web-1",
            0,
            0,
            len(self.limits),
            *rules,
        ]
        keys = [*self.guard[:3], *map(self.limit_key, self.limits), *self.guard[3:]]
        wanted = [most, self.lease_us, self.result_us, limits]
        reply = self._run("take", keys, [msgspec.msgpack.encode(asked), msgspec.msgpack.encode(wanted)])
        verdict, _, _, _, wait, following, again, rows = msgspec.msgpack.decode(reply[0])
        names = (
            "id",
            "fence",
            "tries",
            "token",
            "until",
            "submitted",
            "deadline",
            "priority",
            "tenant",
            "costs",
        )
        jobs = [
            dict(zip(names, row, strict=True)) | {"payload": payload}
            for row, payload in zip(rows, reply[1:], strict=True)
        ]
        return Taken(verdict, wait, following, bool(again), jobs)

    def keep(self, *leases: tuple[str, int]) -> list[int]:
        slots = self._slots
        words = [part for limit in slots for part in (limit.measure, limit.window_ms * 1000)]
        flat = [part for lease in leases for part in lease]
        blob = msgspec.msgpack.encode([self.lease_us, words, flat])
        return self._run("keep", [*map(self.limit_key, slots)], [blob])[:-1]  # type: ignore[no-any-return]

    def end(
        self, job_id: str, fence: int, how: str, *, delay_us: int = 0, result: bytes = b"", cause: str = ""
    ) -> int:
        measures = [limit.measure for limit in self._slots]
        blob = msgspec.msgpack.encode(
            [job_id, fence, HOW[how], delay_us, self.result_us, cause, "hints", "d", measures]
        )
        return self._run("end", [*map(self.limit_key, self._slots)], [blob, result])  # type: ignore[no-any-return]

    def cancel(self, job_id: str) -> int:
        return self._run("change", [], [job_id, 1, self.result_us, "hints", "d"])  # type: ignore[no-any-return]

    def revive(self, job_id: str) -> int:
        return self._run("change", [], [job_id, 2, self.result_us, "hints", "d"])  # type: ignore[no-any-return]

    def look(self, *ids: str) -> tuple[BacklogFigures, list[bytes]]:
        reply = self._run("look", [], list(ids))
        return msgspec.convert(reply[0], BacklogFigures), reply[1:]

    def dead(self, what: str, *, most: int = 200, until_us: int = 0) -> list[Any]:
        number = {"list": 1, "return": 2, "delete": 3}[what]
        return self._run("dead", [], [number, most, until_us, self.result_us, "hints", "d"])  # type: ignore[no-any-return]

    def ordered(self, part: str) -> dict[str, float]:
        """Members and scores of ready, delayed, leases or dead."""
        found: Any = self.client.zrange(self.keys[part], 0, -1, withscores=True)
        return {name.decode(): score for name, score in found}

    def hashed(self, part: str) -> dict[bytes, bytes]:
        return self.client.hgetall(self.keys[part])  # type: ignore[return-value]

    def contents(self) -> dict[bytes, object]:
        """Every key; the statistics apart. Hashes without their order: reading a larger one may change it."""
        skipped = {self.keys["stats"].encode(), self.keys["hint"].encode()}
        return {
            key: self.client.hgetall(key) if self.client.type(key) == b"hash" else self.client.dump(key)
            for key in self.client.keys("*")
            if key not in skipped
        }

    @property
    def _slots(self) -> list[Limit]:
        return [limit for limit in self.limits if limit.algorithm is Algorithm.CONCURRENCY]

    def _run(self, name: str, first: list[str], arguments: list[Any]) -> Any:
        script, every = self.scripts[name], [*first, *self.keys.values()]
        reply = run_script(self.client, script, every, [*arguments, self.now_us])
        # Keys of limits expire in real time, while virtual time stands still: what counts would be lost.
        for limit in self.limits:
            self.client.persist(self.limit_key(limit))
        return reply
