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

from fuseboard.batching.demand import Demand
from fuseboard.contract import keys
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import DRAIN, Script
from fuseboard.store.store import NotServedError
from fuseboard.without_redis import drain as real_drain
from fuseboard.without_redis import journal as real_journal
from fuseboard.without_redis import offline_counts as real_counts
from fuseboard.without_redis.local_limits import LocalLimits
from tests.agents.models.offline_limits import OFFSET_S, REFS, SHARED_KEY, Counts, boot_of, by_limit, in_file

#: Which limits some calls spend, and how much of each.
_CALLS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=4)
_FATES = st.sampled_from(["served", "served", "answer lost", "question lost"])


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
                number, name = next(self._numbers), self._counts.segment.name
                self._write(number, name, changed, dict(self._counts.segment.totals))

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
            #: Limit -> the known span of its last call in this segment, and its end: it lasts until then,
            #: also if the time is forgotten.
            self.known: dict[int, tuple[str, int]] = {}

        @property
        def boot(self) -> str:
            return boot_of(self.counts.segment.name)

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
            mine = boot_of(name) == self.teller.boot
            living = {pod.boot for pod in self.pods}
            assert mine or boot_of(name) not in living, "the file of a living pod is adopted"
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
            # Unknown time is looked up again after a second.
            self.now += 3_600

        @rule(old=st.booleans())
        @precondition(lambda self: len(self.pods) < 3)
        def a_pod_starts(self, old: bool) -> None:
            self.pods.append(Pod(self, old=old))

        @rule(which=st.integers(0, 2), calls=_CALLS)
        @precondition(lambda self: self.pods)
        def calls_are_allowed(self, which: int, calls: list[tuple[int, int]]) -> None:
            self._allow(self.pods[which % len(self.pods)], calls)

        def _allow(self, pod: Pod, calls: list[tuple[int, int]]) -> None:
            for at, cost in calls:
                ref, length, begins = REFS[at]
                pod.counts.note(Demand((ref,), (cost,)), self.now)
                pod.noted[ref.key.decode(), self._span(pod, at, length, begins)] += cost

        def _span(self, pod: Pod, limit: int, length: int, begins: int) -> str:
            if pod.old:
                return ""
            now = int(self.now) + OFFSET_S
            span, ends = pod.known.get(limit, ("", 0))
            if now >= ends:
                start = now - (now - begins) % length
                span, ends = (f"{start}+{length}", start + length) if self.learned else ("0+0", 0)
                pod.known[limit] = span, ends
            return span + ("~" if REFS[limit][0].limit.shadow else "")

        @rule(which=st.integers(0, 2))
        @precondition(lambda self: self.pods)
        def the_journal_is_written(self, which: int) -> None:
            self._write(self.pods[which % len(self.pods)])

        def _write(self, pod: Pod) -> None:
            pod.files.flush_soon()
            pod.written = pod.noted.copy()
            self.segments[pod.counts.segment.name] = (pod.noted, pod.written)

        @rule(which=st.integers(0, 2), fate=_FATES, orphans=st.booleans())
        @precondition(lambda self: self.pods)
        def everything_is_reported(self, which: int, fate: str, orphans: bool) -> None:
            self._report(self.pods[which % len(self.pods)], fate, orphans)

        def _report(self, pod: Pod, fate: str, orphans: bool) -> None:
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
                pod.noted, pod.written, pod.known = Counter(), Counter(), {}

        @rule(which=st.integers(0, 2))
        @precondition(lambda self: self.pods)
        def a_pod_dies(self, which: int) -> None:
            self._die(self.pods[which % len(self.pods)])

        def _die(self, pod: Pod) -> None:
            self.pods.remove(pod)
            self.segments[pod.counts.segment.name] = (pod.noted, pod.written)
            if pod.files._lock_file is not None:
                os.close(pod.files._lock_file)

        @rule(
            calls=_CALLS,
            later=_CALLS,
            old=st.booleans(),
            fate=_FATES,
            heir=st.integers(0, 2),
            lives=st.booleans(),
            pause=st.sampled_from([0, 61, 301]),
        )
        @precondition(lambda self: 0 < len(self.pods) < 3)
        def another_pod_reports_what_one_wrote(
            self,
            calls: list[tuple[int, int]],
            later: list[tuple[int, int]],
            old: bool,
            fate: str,
            heir: int,
            lives: bool,
            pause: int,
        ) -> None:
            """In one step, because few examples come to it in many."""
            pod, other = Pod(self, old=old), self.pods[heir % len(self.pods)]
            self.pods.append(pod)
            self._allow(pod, calls)
            self.now += pause
            self._allow(pod, calls)
            self._write(pod)
            self._allow(pod, later)
            if not lives:
                self._die(pod)
            self._report(other, fate, orphans=True)

        @rule(calls=_CALLS, heir=st.integers(0, 2))
        @precondition(lambda self: 0 < len(self.pods) < 3)
        def a_pod_dies_before_redis_answers(self, calls: list[tuple[int, int]], heir: int) -> None:
            pod, other = Pod(self, old=False), self.pods[heir % len(self.pods)]
            self.pods.append(pod)
            self._allow(pod, calls)
            self._report(pod, "question lost", orphans=False)
            self._die(pod)
            self._report(other, "served", orphans=True)

        @rule(calls=_CALLS, which=st.integers(0, 2))
        @precondition(lambda self: self.pods)
        def calls_go_on_after_a_report(self, calls: list[tuple[int, int]], which: int) -> None:
            """A new segment knows nothing of the last one, not even the time."""
            pod = self.pods[which % len(self.pods)]
            self._allow(pod, calls)
            self._report(pod, "served", orphans=False)
            self.learned = not self.learned
            self.now += 2
            self._allow(pod, calls)

        @invariant()
        def what_was_spent_of_a_share_is_charged(self) -> None:
            for pod in self.pods:
                for segment in (pod.counts.segment, *pod.counts.closed):
                    spent = any(name.partition(b"@")[0] == SHARED_KEY for name in segment.totals)
                    assert (SHARED_KEY in segment.spent) == spent

        @invariant()
        def nothing_is_lost(self) -> None:
            """What Redis does not have is in the memory of its pod, or else in its file."""
            living = {pod.boot: pod for pod in self.pods}
            for name, (noted, written) in self.segments.items():
                pod = living.get(boot_of(name))
                if pod is not None:
                    kept = {segment.name for segment in (pod.counts.segment, *pod.counts.closed)}
                    assert name in kept or not self._unwritten(name, noted), (
                        "a pod has forgotten what it allowed"
                    )
                elif untold := self._unwritten(name, written):
                    assert in_file(directory, name) >= by_limit(untold), "a file has less than its pod wrote"

        def _unwritten(self, name: str, counts: Counts) -> Counts:
            return Counter(
                {
                    (limit, span): amount
                    for (limit, span), amount in counts.items()
                    if (name, keys.offline_totals(limit)) not in self.told
                }
            )

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
