"""Each call that pods allowed without Redis is counted once, in its span of time, or the test fails."""

from pathlib import Path
from types import ModuleType
from zlib import crc32

import pytest
import redis
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from fuseboard.contract.scripts import DRAIN
from fuseboard.without_redis import drain, journal, offline_counts
from tests.agents.models.offline_machine import Modules, offline_machine
from tests.agents.mutating import Mutant, mutated

USUAL = settings(max_examples=60, stateful_step_count=30, deadline=None)
HUNT = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def _mutants(module: ModuleType, *bugs: tuple[str, str, str]) -> list[tuple[ModuleType, Mutant]]:
    return [(module, Mutant(*bug)) for bug in bugs]


_NEXT = "self.segment, self._places = Segment(next(self._names)), {}"
MUTANTS = [
    *_mutants(
        offline_counts,
        ("a span never ends", "if place is None or now >= place.until or", "if place is None or"),
        ("a span is not aligned", "start = int(time_s // length) * length", "start = int(time_s)"),
        ("spans of a second", "length = max(SHORTEST_S, math", "length = max(1, math"),
        ("half a second is left out", "math.ceil(limit.window_ms / 1000)", "limit.window_ms // 1000"),
        ("a calendar period is like others", "if limit.period is not None:", "if False:"),
        (
            "shadows are like others",
            "part_suffix(start, length, shadow=limit.shadow)",
            "part_suffix(start, length, shadow=False)",
        ),
        ("places outlive their segment", _NEXT, "self.segment = Segment(next(self._names))"),
        ("a new segment has the old name", _NEXT, "self.segment, self._places = Segment(ended.name), {}"),
        ("the time is made up", "return 0, 0, now + NO_TIME_S", "offset_s = 0.0"),
    ),
    *_mutants(
        journal,
        ("spans are not written", 'sums[f"{places[limit]}@{span}"] = amount', "pass"),
        ("sums are not written", "sums[limit] = sums.get(limit, 0) + amount", "sums[limit] = amount"),
        ("sums count beside spans", "counts[limit] -= amount", "pass"),
        ("the place of a limit is forgotten", "limit = limits[int(place)]", "limit = limits[0]"),
        ("files of the living are adopted", "or _is_alive(lock):", "or False:"),
        ("the lock of a pod ends", "self._lock_file = descriptor", "os.close(descriptor)"),
    ),
    *_mutants(
        drain,
        (
            "a span is not reported",
            "        if timed:\n            fields",
            "        if False:\n            fields",
        ),
        ("the sum of a limit is its last span", "limits[limit] += amount", "limits[limit] = amount"),
        (
            "a segment is forgotten too early",
            "            if not await self._report(segment):\n                return False\n",
            "            await self._report(segment)\n",
        ),
        (
            "an orphan is forgotten too early",
            "if await self._report(orphan):",
            "if [await self._report(orphan)]:",
        ),
        (
            "what is not written is closed",
            "                    self.journal.flush_soon()\n                self._offline.close()",
            "                    pass\n                self._offline.close()",
        ),
    ),
]
SCRIPTS = [
    Mutant(
        "a segment counts again", "if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end", ""
    ),
    Mutant("names are not remembered", "redis.call('SADD', KEYS[1], ARGV[1])", ""),
    Mutant("one field for all", "HINCRBY', KEYS[2], totals[i],", "HINCRBY', KEYS[2], totals[1],"),
    Mutant("the last report stays", "redis.call('HINCRBY', KEYS[2]", "redis.call('HSET', KEYS[2]"),
    Mutant("a hash has no name", "redis.call('HSETNX', KEYS[2], '@id', ARGV[1])", ""),
]


def test_every_call_counts_once_in_its_span_of_time(limits: redis.Redis, tmp_path: Path) -> None:
    run_state_machine_as_test(offline_machine(limits, tmp_path / "pods"), settings=USUAL)


def test_without_room_times_are_lost_and_no_call_is(limits: redis.Redis, tmp_path: Path) -> None:
    machine = offline_machine(limits, tmp_path / "pods", most_keys=4)
    run_state_machine_as_test(machine, settings=USUAL)


@pytest.mark.mutants
@pytest.mark.parametrize(("module", "mutant"), MUTANTS, ids=[mutant.name for _, mutant in MUTANTS])
def test_a_bug_of_the_agent_is_noticed(
    module: ModuleType, mutant: Mutant, limits: redis.Redis, tmp_path: Path
) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - however it is noticed
        _hunt(mutant, limits, tmp_path / "pods", Modules(mutated(module, mutant)))


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", SCRIPTS, ids=[mutant.name for mutant in SCRIPTS])
def test_a_bug_of_the_script_is_noticed(mutant: Mutant, limits: redis.Redis, tmp_path: Path) -> None:
    assert DRAIN.text.count(mutant.old) == 1, f"{mutant.name!r} no longer matches the script"
    script = replace(DRAIN, text=DRAIN.text.replace(mutant.old, mutant.new))
    with pytest.raises(Exception):  # noqa: B017, PT011
        _hunt(mutant, limits, tmp_path / "pods", Modules(script=script))


def _hunt(mutant: Mutant, limits: redis.Redis, directory: Path, code: Modules) -> None:
    """With its own sequence, which a change of the model does not change."""
    machine = seed(crc32(mutant.name.encode()))(offline_machine(limits, directory, code))
    run_state_machine_as_test(machine, settings=HUNT)
