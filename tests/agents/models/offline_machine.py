"""What pods allow without Redis, as a state machine: pods of this and of the former version on one disk.

Pods die, answers of Redis are lost before or after they took effect, files are adopted. Redis must have
exactly what a list of all calls says: each call that its pod still knew or had written, once, in its span of
time. Redis, the script and the files are real; time and the order of events are Hypothesis'.
"""

import asyncio
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract import keys
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import DRAIN, Script
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from fuseboard.store.store import NotServedError
from fuseboard.without_redis import drain as real_drain
from fuseboard.without_redis import journal as real_journal
from fuseboard.without_redis import offline_counts as real_counts
from fuseboard.without_redis.local_limits import LocalLimits

#: Fleet time minus the monotonic clock.
OFFSET_S = 1_763_931_600

PER_MINUTE = Limit(name="requests", limit=1000, window_ms=60_000)
SHARED = Limit(name="tokens", limit=1000, window_ms=299_500, failure_policy=FailurePolicy.LOCAL_SHARE)
DAILY = Limit(
    name="daily",
    limit=1000,
    window_ms=86_400_000,
    algorithm=Algorithm.FIXED_WINDOW,
    period=Period.DAY,
    time_zone="Asia/Kolkata",
)
SHADOW = Limit(name="vendor", limit=5, window_ms=1_000, shadow=True)
ACME = ("production", "acme")
#: Each with the length of its spans and where one begins, worked out by hand: a day of India at 18:30.
REFS = (
    (LimitRef(PER_MINUTE, keys.tenant_quota(*ACME, "requests")), 60, 0),
    (LimitRef(SHARED, keys.tenant_quota(*ACME, "tokens", "GET /")), 300, 0),
    (LimitRef(DAILY, keys.tenant_quota("production", "beta", "daily")), 86_400, 66_600),
    (LimitRef(SHADOW, keys.vendor_limit("production", "openai", "vendor")), 60, 0),
)
#: What a call is counted as: key of the limit, and what follows the "@".
Counts = Counter[tuple[str, str]]


class Modules:
    """The code under test, or code with a bug."""

    def __init__(self, *changed: ModuleType, script: Script = DRAIN) -> None:
        by_name = {module.__name__.removesuffix("_with_a_bug"): module for module in changed}
        self.counts: Any = by_name.get(real_counts.__name__, real_counts)
        self.journal: Any = by_name.get(real_journal.__name__, real_journal)
        self.drain: Any = by_name.get(real_drain.__name__, real_drain)
        self.script = script


def offline_machine(
    client: redis.Redis, directory: Path, modules: Modules | None = None, most_keys: int = 1000
) -> type[RuleBasedStateMachine]:
    code = modules or Modules()

    class OldCounts(code.counts.OfflineCounts):  # type: ignore[misc, name-defined]
        """Version 0.1 counts a limit whatever the time."""

        def _span(self, limit: Limit, now: float) -> tuple[int, int, float]:
            return 0, 0, float("inf")

        def note(self, demand: Demand, now: float) -> None:
            before = dict(self.segment.totals), dict(self.changed)
            super().note(demand, now)
            for counts, was in zip((self.segment.totals, self.changed), before, strict=True):
                for key in [key for key in counts if b"@" in key]:
                    plain = key.partition(b"@")[0]
                    counts[plain] = was.get(plain, 0) + counts.pop(key)

    class Files(code.journal.Journal):  # type: ignore[misc, name-defined]
        """Writes, reads and deletes at once, not in threads."""

        old = False

        def flush_soon(self) -> None:
            changed, self._counts.changed = self._counts.changed, {}
            if changed:
                self._write(self._counts.segment.name, changed, dict(self._counts.segment.totals))

        def forget(self, name: str) -> None:
            self._delete(name)

        async def orphans(self) -> list[Any]:
            found = self._find_orphans()
            return [self._as_old(one) for one in found] if self.old else list(found)

        def _as_old(self, segment: Any) -> Any:
            """Version 0.1 adds up what has a brace, and ignores the rest."""
            totals: Counter[bytes] = Counter()
            for line in self._path(segment.name).read_bytes().split(b"\n"):
                _, _, body = line.partition(b" ")
                decoded = code.journal.msgspec.json.decode(body) if body else None
                if isinstance(decoded, dict):
                    totals.update({key.encode(): n for key, n in decoded.items() if "}" in key})
            return code.counts.Segment(segment.name, dict(totals))

    class Pod:
        def __init__(self, machine: "OfflineMachine", *, old: bool) -> None:
            self.old = old
            kind = OldCounts if old else code.counts.OfflineCounts
            self.counts = kind(lambda: OFFSET_S if machine.learned else None)
            self.counts.most_keys = most_keys
            self.files = Files(directory, environment="production", service="shop", counts=self.counts)
            self.files.old = old
            self.drain = code.drain.Drain(
                store=machine,
                health=machine,
                local=LocalLimits(lambda: 1, offline=self.counts),
                journal=self.files,
            )
            self.drain.noted = lambda: None
            #: What it counted in its segment, and what of that is on disk.
            self.noted: Counts = Counter()
            self.written: Counts = Counter()

    class OfflineMachine(RuleBasedStateMachine):
        usable = True

        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            shutil.rmtree(directory, ignore_errors=True)
            self.now = 1_000.0
            self.learned = True
            self.pods = [Pod(self, old=False)]
            #: Name of a segment -> what its pod counted, and what is on disk; both by now.
            self.segments: dict[str, tuple[Counts, Counts]] = {}
            self.expected: dict[str, Counter[str]] = defaultdict(Counter)
            self.told: set[tuple[str, str]] = set()
            self.fate = "served"
            self.teller: Pod | None = None

        # Redis, as the drain sees it

        def store_time_us(self) -> int:
            return int((self.now + OFFSET_S) * 1_000_000)

        def run(
            self,
            script: Script,
            names: tuple[bytes, ...],
            arguments: tuple[Any, ...],
            answered: Callable[..., None],
        ) -> None:
            if self.fate == "question lost":
                answered(NotServedError("lost"))
                return
            client.eval(code.script.text, len(names), *names, *arguments)
            self._expect(arguments[0], names[1].decode())
            answered(NotServedError("lost") if self.fate == "answer lost" else 1)

        def _expect(self, name: str, totals: str) -> None:
            """The first report of a segment counts, in each domain."""
            if (name, totals) in self.told:
                return
            self.told.add((name, totals))
            assert self.teller is not None
            mine = name.startswith(self.teller.counts.segment.name.rpartition("-")[0])
            noted, written = self.segments[name]
            for (limit, span), amount in (noted if mine else written).items():
                if keys.offline_totals(limit) == totals:
                    rest = keys.offline_field(limit)
                    self.expected[totals][rest] += amount
                    if span and (mine or not self.teller.old):
                        self.expected[totals][f"{rest}@{span}"] += amount

        # What happens

        @rule(seconds=st.sampled_from([1, 29, 30, 59, 60, 61, 299, 3_600, 40_000]))
        def time_passes(self, seconds: int) -> None:
            self.now += seconds

        @rule()
        def the_time_is_forgotten_or_learned(self) -> None:
            self.learned = not self.learned
            # A span lasts to its end, and unknown time for a second.
            self.now += 3_600

        @rule(old=st.booleans())
        @precondition(lambda self: len(self.pods) < 3)
        def a_pod_starts(self, old: bool) -> None:
            self.pods.append(Pod(self, old=old))

        @rule(
            which=st.integers(0, 2),
            calls=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=4),
        )
        @precondition(lambda self: self.pods)
        def calls_are_allowed(self, which: int, calls: list[tuple[int, int]]) -> None:
            pod = self.pods[which % len(self.pods)]
            for at, cost in calls:
                ref, length, begins = REFS[at]
                pod.counts.note(Demand((ref,), (cost,)), self.now)
                pod.noted[ref.key.decode(), self._span(pod, ref.limit, length, begins)] += cost

        def _span(self, pod: Pod, limit: Limit, length: int, begins: int) -> str:
            if pod.old:
                return ""
            at = int(self.now) + OFFSET_S
            span = f"{at - (at - begins) % length}+{length}" if self.learned else "0+0"
            return span + ("~" if limit.shadow else "")

        @rule(which=st.integers(0, 2))
        @precondition(lambda self: self.pods)
        def the_journal_is_written(self, which: int) -> None:
            pod = self.pods[which % len(self.pods)]
            pod.files.flush_soon()
            pod.written = pod.noted.copy()
            self.segments[pod.counts.segment.name] = (pod.noted, pod.written)

        @rule(
            which=st.integers(0, 2),
            fate=st.sampled_from(["served", "served", "answer lost", "question lost"]),
            orphans=st.booleans(),
        )
        @precondition(lambda self: self.pods)
        def everything_is_reported(self, which: int, fate: str, orphans: bool) -> None:
            pod = self.pods[which % len(self.pods)]
            self.teller, self.fate = pod, fate
            # It is written before it is closed, and closed only when older ones are reported.
            name, waiting = pod.counts.segment.name, bool(pod.counts.closed)
            before = self.segments.get(name)
            self.segments[name] = (pod.noted, pod.noted.copy())
            asyncio.run(pod.drain._report_all(orphans))
            if pod.counts.segment.name == name:
                assert not pod.noted or (waiting and fate != "served")
                if pod.noted:
                    self.segments[name] = before or (pod.noted, pod.written)
            else:
                pod.noted, pod.written = Counter(), Counter()

        @rule(which=st.integers(0, 2))
        @precondition(lambda self: self.pods)
        def a_pod_dies(self, which: int) -> None:
            pod = self.pods.pop(which % len(self.pods))
            self.segments[pod.counts.segment.name] = (pod.noted, pod.written)
            if pod.files._lock_file is not None:
                os.close(pod.files._lock_file)

        @invariant()
        def redis_has_each_call_once(self) -> None:
            if most_keys < 1000:
                self._check_sums()
                return
            found: dict[str, dict[str, int]] = {}
            for name in client.scan_iter("*:offline"):
                found[name.decode()] = self._stored(name.decode())
            assert found == {name: dict(fields) for name, fields in self.expected.items()}

        def _stored(self, name: str) -> dict[str, int]:
            fields: dict[bytes, bytes] = client.hgetall(name)  # type: ignore[assignment]
            assert fields.pop(b"@id")
            return {field.decode(): int(amount) for field, amount in fields.items()}

        def _check_sums(self) -> None:
            """Without room, times are lost, and no call is."""
            for pod in self.pods:
                limits = {name.partition(b"@")[0] for name in pod.counts.segment.totals}
                assert len(pod.counts.segment.totals) <= len(limits) + most_keys // 2
            for name, fields in self.expected.items():
                sums = {field: amount for field, amount in fields.items() if "@" not in field}
                found = self._stored(name)
                assert {field: n for field, n in found.items() if "@" not in field} == sums
                for field, amount in sums.items():
                    parts = sum(n for part, n in found.items() if part.startswith(f"{field}@"))
                    assert parts <= amount

        def teardown(self) -> None:
            for pod in self.pods:
                if pod.files._lock_file is not None:
                    os.close(pod.files._lock_file)

    return OfflineMachine
