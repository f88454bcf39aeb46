"""Descriptors that Envoy asked the pods of one environment for, by rule, and those that no rule matched.

Pods are not trusted. Only rules of the configuration are counted by name. Lists of keys and domains are
bounded, and what one pod may bring of them, too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Any

from controlplane.fleet.descriptor_figures import STEP_S, STEPS
from controlplane.refusals.heavy_hitters import HeavyHitters
from fuseboard.contract.descriptor_tallies import (
    MAX_EXAMPLES,
    DescriptorTally,
    RuleTally,
    UnmatchedTally,
)
from fuseboard.contract.sync import SyncRequest

#: Lists of keys of one domain in one step, and those of them that one pod brings.
MAX_LISTS, MAX_LISTS_OF_POD = 50, 25
#: Domains that are not configured, and those of them that one pod brings in one step.
MAX_UNKNOWN, MAX_UNKNOWN_OF_POD = 20, 5
#: Pods of one domain in one step that are listed, those with the most descriptors.
MAX_LISTED = 50
#: Twice as many pods are counted exactly. Of equal pods, each one beyond that takes from all others.
_COUNTED = 1_000
#: The most that one tally can add to a row: a pod that answers 200,000 descriptors per second for 5 s.
MAX_COUNT = 1_000_000
#: Processes whose last number is remembered.
MAX_PODS = 50_000
#: Rows that are written together, and the time between two rows of one domain.
ROWS_AT_ONCE = 20
AGAIN_S = 5.0

#: Domain -> its configured rules, as tallies name them.
KnownRules = Mapping[str, Set[str]]


class _Step:
    """Descriptors of one domain in one step."""

    __slots__ = ("brought", "examples", "pods", "rules", "unmatched")

    def __init__(self) -> None:
        #: Rule -> asked, refused and shadow.
        self.rules: dict[str, list[int]] = {}
        #: Lists of keys.
        self.unmatched = HeavyHitters(MAX_LISTS)
        self.examples: dict[str, tuple[str, ...]] = {}
        #: Pod -> how many lists it brought.
        self.brought: Counter[str] = Counter()
        #: The descriptors that each pod answered.
        self.pods = HeavyHitters(_COUNTED)

    def add_rule(self, one: RuleTally, pod: str) -> None:
        counts = self.rules.setdefault(one.rule, [0, 0, 0])
        for place, count in enumerate((one.asked, min(one.refused, one.asked), min(one.shadow, one.asked))):
            counts[place] += min(count, MAX_COUNT)
        if one.asked:
            self.pods.add(pod, min(one.asked, MAX_COUNT))

    def add_unmatched(self, one: UnmatchedTally, pod: str) -> bool:
        """Returns whether there was room for it."""
        if not one.asked:
            return True
        if one.keys not in self.unmatched.counts:
            if self.brought[pod] >= MAX_LISTS_OF_POD:
                return False
            self.brought[pod] += 1
        self.unmatched.add(one.keys, min(one.asked, MAX_COUNT))
        self.pods.add(pod, min(one.asked, MAX_COUNT))
        seen = dict.fromkeys((*self.examples.get(one.keys, ()), *one.examples))
        self.examples[one.keys] = tuple(islice(seen, MAX_EXAMPLES))
        if len(self.examples) > 2 * MAX_LISTS:
            self.examples = {keys: self.examples[keys] for keys in self.unmatched.counts}
        return True

    def document(self) -> dict[str, Any]:
        lists, _ = self.unmatched.top(MAX_LISTS)
        return {
            "rules": self.rules,
            "unmatched": [[keys, int(count), self.examples.get(keys, ())] for keys, count in lists],
            "unmatched_total": int(self.unmatched.total),
            "pods": [[pod, int(count)] for pod, count in self.pods.top(MAX_LISTED)[0]],
            "pods_total": len(self.pods.counts),
        }


class _Domain:
    __slots__ = ("steps", "written_at")

    def __init__(self) -> None:
        #: Start in unix seconds -> what was asked.
        self.steps: dict[int, _Step] = {}
        self.written_at = float("-inf")


class DescriptorFigures:
    """The descriptors of the pods that one gateway receives heartbeats of, in one environment."""

    def __init__(self) -> None:
        self._domains: dict[str, _Domain] = {}
        self._dirty: dict[str, None] = {}
        #: Pod -> its process, and the number of its last tally.
        self._numbers: dict[str, tuple[str, int]] = {}
        self._step = 0
        #: Pod -> how many unknown domains it brought in this step.
        self._brought: Counter[str] = Counter()
        #: Descriptors that found no room, here or in a pod, or whose rule is not configured.
        self.left_out = 0

    def record(self, beat: SyncRequest, known: KnownRules, wall: float, *, stale: bool = False) -> None:
        """Take the tally of a heartbeat, once. A stale one is repeated, or of a process that was replaced."""
        tally = beat.descriptors
        if tally is None or stale or not self._is_new(beat, tally):
            return
        self._turn(int(wall) // STEP_S * STEP_S)
        self.left_out += tally.left_out
        for one in tally.rules:
            if one.rule in known.get(one.domain, ()):
                self._step_of(one.domain).add_rule(one, beat.server)
            else:
                self.left_out += one.asked
        for keys in tally.unmatched:
            room = self._has_room(keys.domain, beat.server, known)
            if not room or not self._step_of(keys.domain).add_unmatched(keys, beat.server):
                self.left_out += keys.asked

    def due(self, now: float) -> list[tuple[str, dict[str, Any]]]:
        """Domains with news and their documents, a few at a time; ``put_back`` what is not written."""
        found: list[tuple[str, dict[str, Any]]] = []
        for name in list(self._dirty):
            domain = self._domains[name]
            if now - domain.written_at < AGAIN_S:
                continue
            del self._dirty[name]
            domain.written_at = now
            steps = [[at, step.document()] for at, step in sorted(domain.steps.items())]
            found.append((name, {"steps": steps}))
            if len(found) >= ROWS_AT_ONCE:
                break
        return found

    def put_back(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._domains:
                self._dirty[name] = None

    def forget(self, name: str) -> None:
        """Postgres refuses what is known of this domain: begin again."""
        self._domains.pop(name, None)
        self._dirty.pop(name, None)

    def erase_examples(self) -> None:
        """Forget all examples: one may name a caller that is erased. Its erasure deletes all rows."""
        for name, domain in self._domains.items():
            self._dirty[name] = None
            for step in domain.steps.values():
                step.examples = {}

    def _is_new(self, beat: SyncRequest, tally: DescriptorTally) -> bool:
        boot, number = self._numbers.pop(beat.server, (beat.boot, 0))
        is_new = boot != beat.boot or tally.number > number
        self._numbers[beat.server] = (beat.boot, tally.number if is_new else number)
        if len(self._numbers) > MAX_PODS:
            del self._numbers[next(iter(self._numbers))]
        return is_new

    def _turn(self, at: int) -> None:
        """Begin a step, if it is time, and forget those that no page shows."""
        if at == self._step:
            return
        self._step = at
        self._brought.clear()
        for name, domain in list(self._domains.items()):
            # Also of the future, if the wall clock stepped back.
            domain.steps = {
                start: step for start, step in domain.steps.items() if at - STEPS * STEP_S < start <= at
            }
            if not domain.steps:
                self.forget(name)

    def _step_of(self, name: str) -> _Step:
        domain = self._domains.get(name)
        if domain is None:
            domain = self._domains[name] = _Domain()
        self._dirty[name] = None
        step = domain.steps.get(self._step)
        if step is None:
            step = domain.steps[self._step] = _Step()
        return step

    def _has_room(self, name: str, pod: str, known: KnownRules) -> bool:
        if name in known or name in self._domains:
            return True
        unknown = sum(domain not in known for domain in self._domains)
        if unknown >= MAX_UNKNOWN or self._brought[pod] >= MAX_UNKNOWN_OF_POD:
            return False
        self._brought[pod] += 1
        return True
