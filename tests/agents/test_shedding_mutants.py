"""Checks of a pod's protection: all pass with the code, and with each of these bugs one fails."""

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fuseboard.contract.protection import Readiness, Shedding
from fuseboard.protection import cgroup, fair_part, latency_histogram, pressure, readiness, shedding, switch
from tests.agents.mutating import Mutant, mutated
from tests.agents.overload import simulate
from tests.agents.test_cgroup import STAT_2, Machine

LEVELS = tuple(range(1, 11))
FREE, PREMIUM = 10, 90


def anyone(draw: random.Random) -> tuple[int, str]:
    return draw.randint(1, 10), f"tenant-{draw.randint(1, 500)}"


def check_half_is_refused_from_below(module: ModuleType) -> None:
    made = module.Shedder(Shedding(queue_max=50), LEVELS, seed=1)
    result = simulate(made, rate=lambda now: 1000, who=anyone, seconds=20)
    assert abs(result.drop_rate(5) - 0.5) < 0.05
    assert result.throughput(5, 20) > 470
    assert min(result.part(level) for level in LEVELS[7:]) > 0.95
    assert max(result.part(level) for level in LEVELS[:4]) < 0.06
    assert result.quantile(0.95, 5) < 0.18


def check_it_ends_and_does_not_flutter(module: ModuleType) -> None:
    made = module.Shedder(Shedding(queue_max=50), LEVELS, seed=1)
    result = simulate(made, rate=lambda now: 1000 if 5 <= now < 15 else 350, who=anyone, seconds=30)
    assert len(result.switches) == 2
    assert result.drop_rate(20, 30) == 0


def check_levels_of_pressure(module: ModuleType) -> None:
    made = module.Shedder(Shedding(), (FREE, 50, PREMIUM), seed=1)
    seen = []
    for step, value in enumerate((0.5, 0.7, 0.75, 0.65, 0.95, 0.85, 0.75, 0.55)):
        made.tick(float(step), module.Load(pressure=value))
        seen.append([one for one in (FREE, 50, PREMIUM) if made.enter(one, "a") is None])
    assert made.enter(7, "a") is None  # no tier has this priority: it counts as the lowest
    made.tick(10.0, module.Load(pressure=0.95))
    assert made.enter(7, "a") is not None
    everyone, paying, best = [FREE, 50, PREMIUM], [50, PREMIUM], [PREMIUM]
    assert seen == [everyone, everyone, paying, paying, best, best, paying, everyone]


def check_a_queue_is_left_when_half_of_it_is_empty(module: ModuleType) -> None:
    made = module.Shedder(Shedding(queue_max=50), LEVELS, seed=1)
    active = []
    for tick in range(40):
        waiting = 51 if tick < 4 else 40 if tick < 24 else 20
        made.tick(tick / 4, module.Load(waiting))
        active.append(made.active)
    assert active[4:24] == [True] * 20
    assert not active[-1]


def check_p95_above_its_limit_sheds(module: ModuleType) -> None:
    made = module.Shedder(Shedding(), LEVELS, seed=1)
    result = simulate(made, rate=lambda now: 1000 if now >= 5 else 350, who=anyone, seconds=40, sla_s=0.5)
    assert result.quantile(0.95, 20, 40) < 1.0
    assert result.throughput(15, 40) > 400


def check_sources_are_equal(module: ModuleType) -> None:
    fair = module.FairPart(random.Random(1))
    asked = {"noisy": 0, "quiet": 0}
    passed = {"noisy": 0, "quiet": 0}
    for tick in range(80):
        fair.tick(100.0, 0.25, tick / 4, forget=tick == 0)
        for number in range(100):
            name = "noisy" if number % 10 else f"quiet-{number}"
            kind = "noisy" if number % 10 else "quiet"
            asked[kind] += 1
            passed[kind] += fair.take(name)
    assert passed["quiet"] / asked["quiet"] > 0.8
    assert 0.1 < passed["noisy"] / asked["noisy"] < 0.25
    assert sum(passed.values()) <= 100 * 20 + 25 + 1
    assert len({hash((fair._seed, name)) % module.GROUPS for name in map(str, range(1000))}) > 50


def check_a_switch_is_steady(module: ModuleType) -> None:
    made = module.Switch(2.0)
    assert made.judge(0.0, enter=True, leave=False)
    assert made.judge(1.0, enter=False, leave=True)
    assert made.judge(1.5, enter=False, leave=False)  # not for the whole time
    assert made.judge(3.0, enter=False, leave=True)
    assert not made.judge(3.5, enter=False, leave=True)
    assert not made.judge(5.0, enter=True, leave=False)
    assert made.judge(5.5, enter=True, leave=False)


def check_pressure(module: ModuleType) -> None:
    gauge = module.PressureGauge()
    both = (module.signal("cpu", 0.95, "CPU"), module.signal("memory", 0.80, "memory"))
    assert gauge.measure(both, 0.0) == 1.0
    assert gauge.cause == "CPU"
    assert abs(gauge.measure(both[1:], 1.0) - 0.9) < 1e-9
    assert abs(gauge.measure(both[1:], 2.0) - 0.8) < 1e-9


def check_readiness(module: ModuleType) -> None:
    made = module.Readiness(Readiness(hold_ms=1_000))
    made.grant(60_000, 0.0, 0.0)
    for tick in range(5):
        assert made.state(tick / 4).ready
        made.tick(0.9, tick / 4)
    assert not made.state(1.0).ready
    assert made.state(60.0).ready
    made.tick(0.7, 2.0)
    made.tick(0.7, 4.0)
    assert not made.state(4.0).ready
    made.tick(0.59, 5.0)
    assert not made.state(5.0).ready
    made.tick(0.59, 6.0)
    assert made.state(6.0).ready
    made.tick(1.0, 7.0)
    made.tick(1.0, 8.0)
    assert not made.state(8.0).ready
    made.grant(0, 8.0, 8.0)
    assert made.state(8.0).ready


def check_histogram(module: ModuleType) -> None:
    histogram = module.LatencyHistogram()
    for number in range(1, 101):
        histogram.add(number / 100, 0.0)
    assert abs(histogram.quantile(0.95, 0.0) / 0.95 - 1) < 0.09
    assert histogram.quantile(0.95, 0.0, at_least=101) is None
    assert abs(histogram.quantile(0.95, 9.9) / 0.95 - 1) < 0.09
    assert histogram.quantile(0.95, 10.0) is None
    histogram.add(1.0, 20.0)
    assert histogram.count(20.0) == 1
    histogram.add(1.0, 29.0)
    assert histogram.count(29.0) == 2
    assert histogram.count(30.0) == 1
    two = module.LatencyHistogram()
    for _ in range(19):
        two.add(0.01, 0.0)
    two.add(1.0, 6.0)
    assert two.quantile(0.5, 6.0) < 0.011
    idle = module.LatencyHistogram()
    idle.add(1.0, 0.0)
    assert idle.quantile(0.95, 10.0) is None


Check = Callable[[ModuleType], None]
SHEDDING: tuple[Check, ...] = (
    check_levels_of_pressure,
    check_a_queue_is_left_when_half_of_it_is_empty,
    check_half_is_refused_from_below,
    check_it_ends_and_does_not_flutter,
    check_p95_above_its_limit_sheds,
)
CHECKS: dict[ModuleType, tuple[Check, ...]] = {
    shedding: SHEDDING,
    fair_part: (check_sources_are_equal,),
    switch: (check_a_switch_is_steady,),
    pressure: (check_pressure,),
    readiness: (check_readiness,),
    latency_histogram: (check_histogram,),
}

MUTANTS: dict[ModuleType, tuple[Mutant, ...]] = {
    shedding: (
        Mutant(
            "the queue is left where it is entered",
            "load.waiting <= most * QUEUE_EXIT",
            "load.waiting <= most",
        ),
        Mutant("pressure is left where it is entered", "PRESSURE_EXIT = 0.1", "PRESSURE_EXIT = 0.0"),
        Mutant(
            "the highest levels are cut first",
            "range(len(self._offered) - 1, -1, -1)",
            "range(len(self._offered))",
        ),
        Mutant(
            "refusals count as finished",
            "        self.refused[self._cause] += 1\n",
            "        self.refused[self._cause] += 1\n        self._finished += 1\n",
        ),
        Mutant(
            "the boundary level passes whole",
            "level == self.cut and self._fair.take(source)",
            "level == self.cut",
        ),
        Mutant(
            "the boundary level is refused whole",
            "if level == self.cut and self._fair.take(source):",
            "if level < 0:",
        ),
        Mutant("the threshold itself sheds", "pressure > shed_at, ", "pressure >= shed_at, "),
        Mutant(
            "hard pressure sheds one level only",
            "len(self._offered) - 1 if self._hard.on else 1",
            "1 if self._hard.on else 1",
        ),
        Mutant(
            "a full queue is not enough",
            "self._queue.judge(now, load.waiting > most, ",
            "self._queue.judge(now, False, ",
        ),
        Mutant("p95 is not looked at", "late > settings.p95_percent,", "False,"),
        Mutant("it ends while more is asked for", "not over and enough)", "not over)"),
        Mutant(
            "arrivals are rate enough",
            "max(0, self._finished - load.refused) / elapsed, 0",
            "sum(self._offered), 0",
        ),
        Mutant(
            "an unknown priority is the highest",
            "self._levels.get(priority, 0)",
            "self._levels.get(priority, 2)",
        ),
    ),
    fair_part: (
        Mutant("all sources share one group", "hash((self._seed, source)) % GROUPS", "0"),
        Mutant("no line", "self._left[group] < 1 or ", ""),
        Mutant("no budget", " or self._budget < 1", ""),
        Mutant("quiet time is saved up", "return min(left, 1.0)", "return left"),
    ),
    switch: (
        Mutant("a moment below is enough", "                self._since = now\n", "                pass\n"),
        Mutant(
            "it goes on again at once",
            "elif enter and (self._since is None or now - self._since >= self._steady_s):",
            "elif enter:",
        ),
    ),
    pressure: (
        Mutant("the mean hides the worst", "worst = max(signals,", "worst = min(signals,"),
        Mutant("it falls at once", "fallen = self.value - FALL_PER_S * elapsed", "fallen = 0.0"),
        Mutant("it never falls", "FALL_PER_S = 0.1", "FALL_PER_S = 0.0"),
    ),
    readiness: (
        Mutant("no gateway is needed", "if self.asks and now < self._granted_until:", "if self.asks:"),
        Mutant(
            "a grant is enough",
            "if self.asks and now < self._granted_until:",
            "if now < self._granted_until:",
        ),
        Mutant("no hold time", "hold_s = self.settings.hold_ms / 1000", "hold_s = 0.0"),
        Mutant("ready again between the two figures", "pressure < LOW, now", "pressure < HIGH, now"),
        Mutant("0 grants for ever", 'if unready_ms else float("-inf")', 'if unready_ms else float("inf")'),
    ),
    latency_histogram: (
        Mutant("an idle window is kept", "_Half() if idle else self._current", "self._current"),
        Mutant("what is too old is read", "if late_s < self._half_window_s else ()", ""),
        Mutant("the window before is read for too long", "self._both[1:] if late_s", "self._both if late_s"),
        Mutant("few samples are enough", "if count < max(1, at_least):", "if count < 1:"),
        Mutant("the older half is forgotten", "seen += sum(samples)", "seen += samples[-1]"),
        Mutant("a late turn keeps more", "(now if idle else self._ends)", "now"),
    ),
}


@pytest.mark.parametrize("module", CHECKS, ids=lambda module: module.__name__)
def test_the_code_passes(module: ModuleType) -> None:
    for check in CHECKS[module]:
        check(module)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("module", "mutant"),
    [(module, mutant) for module, mutants in MUTANTS.items() for mutant in mutants],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_bug_is_noticed(module: ModuleType, mutant: Mutant) -> None:
    twin = mutated(module, mutant)
    for check in CHECKS[module]:
        try:
            check(twin)
        except (AssertionError, ArithmeticError, LookupError):
            return
    pytest.fail(f"{mutant.name!r} is not noticed")


CGROUP_MUTANTS = (
    Mutant(
        "only the pod's own limits count",
        "self._open_all(chain[:1], name)",
        "self._open_all(chain[-1:], name)",
    ),
    Mutant("the page cache is pressure", "max(0, used - stat.get(self._reclaimable, 0))", "used"),
    Mutant("the quota is not looked at", "cores = min(cores, totals.quota) or cores", "pass"),
    Mutant("a counter that goes back is evidence", "elapsed <= 0 or used < 0", "elapsed <= 0"),
)


def check_cgroup(module: ModuleType, machine: Machine) -> None:
    root = machine.version_2("/pods/app")
    machine.group_2(f"{root}/pods/app", cpu_max="200000 100000")
    machine.write(f"{root}/pods/memory.max", "1048576000\n")
    reader = module.ResourceReader(machine.root, cores=lambda: 4, host_cores=8)
    reader.read(0.0)
    machine.write(f"{root}/pods/app/cpu.stat", STAT_2.format(used=3_000_000, periods=1, throttled=0))
    usage = reader.read(1.0)
    assert abs(usage.cpu - 1.0) < 1e-9
    assert abs(usage.memory - 0.6) < 1e-9
    machine.write(f"{root}/pods/app/cpu.stat", STAT_2.format(used=1, periods=1, throttled=0))
    assert reader.read(2.0).cpu is None
    reader.close()


def test_the_reader_of_groups_passes(tmp_path: Path) -> None:
    check_cgroup(cgroup, Machine(tmp_path))


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", CGROUP_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_of_the_reader_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    twin = mutated(cgroup, mutant)
    with pytest.raises((AssertionError, TypeError)):
        check_cgroup(twin, Machine(tmp_path))
