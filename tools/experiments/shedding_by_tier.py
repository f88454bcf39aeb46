"""T3, T11 and T23: which requests a pod sheds, and that it stops shedding by itself."""

from collections import Counter
from itertools import pairwise

from fuseboard.contract.protection import Shedding
from fuseboard.protection.shedding import Load, Shedder
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms, share
from tools.experiments.shedding_pod import TICK_S, SheddingPod
from tools.experiments.traffic import Call, Vendor, arrive, line, times

WORKERS, SERVICE_S = 10, 0.020
CAPACITY = WORKERS / SERVICE_S
LEVELS = tuple(range(10, 101, 10))
#: Tier -> its priority.
TIERS = {"free": 10, "pro": 50, "enterprise": 90}
SETTINGS = Shedding(queue_max=100)


def shedding_by_priority() -> Result:
    """T3: twice the capacity, in ten tiers."""
    seconds, warm_s = 40.0, 5.0

    async def play(settings: Shedding | None) -> list[Call]:
        pod = SheddingPod(WORKERS, Vendor(SERVICE_S, seed=1), settings, LEVELS)
        calls = await arrive(
            lambda at: 2 * CAPACITY,
            seconds,
            pod.serve,
            seed=2,
            level=lambda draw: draw.choice(LEVELS),
            drain_s=5,
        )
        await pod.stop()
        return calls

    ours, theirs = run_virtually(play(SETTINGS)), run_virtually(play(None))
    steady = [call for call in ours if call.at >= warm_s]
    alone = [call for call in theirs if call.at >= warm_s]
    asked = Counter(call.level for call in steady)
    served = Counter(call.level for call in steady if call.served)
    parts = [served[level] / asked[level] for level in LEVELS]
    total = sum(served.values()) / len(steady)
    blocks = [
        sum(call.served for call in block) / len(block)
        for at in range(int(warm_s), int(seconds), 5)
        if (block := [call for call in ours if at <= call.at < at + 5])
    ]
    result = Result(
        key="T3",
        title="Shedding by priority",
        traffic=f"{2 * CAPACITY:.0f} requests per s to a pod that serves {CAPACITY:.0f}, in ten tiers of"
        " equal size. The SLA of the route is 200 ms; the pod measures only its requests.",
        expected="The served part rises with the priority, about half of all requests are served within the"
        " SLA, and that is steady.",
        charts=(
            Chart(
                "Served part by priority of the tier",
                "priority",
                "%",
                {"served": [(level, 100 * part) for level, part in zip(LEVELS, parts, strict=True)]},
            ),
            Chart(
                "p95 of the time of a served request",
                "seconds",
                "ms",
                {
                    "with the agent": line(ours, lambda some: _ms(times(some, 0.95))),
                    "without": line(theirs, lambda some: _ms(times(some, 0.95))),
                },
                most=1000,
            ),
        ),
        table=(
            ("priority", *map(str, LEVELS), "all", "p50", "p95"),
            (
                "with the agent",
                *(f"{100 * part:.0f} %" for part in parts),
                f"{100 * total:.1f} %",
                ms(times(steady, 0.5)),
                ms(times(steady, 0.95)),
            ),
            (
                "without",
                *("late" for _ in LEVELS),
                share(sum(call.served for call in alone), len(alone)),
                ms(times(alone, 0.5)),
                ms(times(alone, 0.95)),
            ),
        ),
    )
    result.check(
        "The served part never falls while the priority rises",
        all(higher >= lower - 0.02 for lower, higher in pairwise(parts)),
    )
    result.check(f"{100 * total:.1f} % of all requests are served", 0.47 <= total <= 0.53)
    result.check(
        f"In each 5 s it is {100 * min(blocks):.0f} to {100 * max(blocks):.0f} %",
        min(blocks) >= 0.44 and max(blocks) <= 0.56,
    )
    result.check(
        "The three lowest tiers get under 10 %, the four highest over 95 %",
        max(parts[:3]) < 0.1 and min(parts[-4:]) > 0.95,
    )
    p95_s = times(steady, 0.95) or 0.0
    result.check(f"p95 of the served requests is {1000 * p95_s:.0f} ms, within the SLA", p95_s <= 0.2)
    return result


def shedding_by_pressure() -> Result:
    """T11: three tiers at three pressures."""
    served = {pressure: _served_at(pressure / 100) for pressure in range(50, 101)}
    rows = [
        (
            f"{pressure / 100:.2f}",
            ", ".join(served[pressure]),
            ", ".join(name for name in TIERS if name not in served[pressure]) or "-",
        )
        for pressure in (65, 75, 95)
    ]
    result = Result(
        key="T11",
        title="Shedding by pressure",
        traffic="Requests of three tiers at a pressure of 0.65, 0.75 and 0.95.",
        expected="All tiers; all but the lowest; only the highest.",
        charts=(
            Chart(
                "Tiers that are served",
                "pressure in percent",
                "tiers",
                {"served": [(pressure, len(names)) for pressure, names in served.items()]},
            ),
        ),
        table=(("pressure", "served", "refused"), *rows),
    )
    result.check("At 0.65 every tier is served", served[65] == ("free", "pro", "enterprise"))
    result.check("At 0.75 the lowest tier is shed", served[75] == ("pro", "enterprise"))
    result.check("At 0.95 only the highest tier is served", served[95] == ("enterprise",))
    return result


def _served_at(pressure: float) -> tuple[str, ...]:
    """The tiers of which every request passes after a second at this pressure; of the others none does."""
    shedder = Shedder(Shedding(), tuple(TIERS.values()), seed=1)
    for number in range(5):
        shedder.tick(number * TICK_S, Load(pressure=pressure))
    passed = {name: sum(shedder.enter(TIERS[name], name) is None for _ in range(20)) for name in TIERS}
    assert set(passed.values()) <= {0, 20}, passed
    return tuple(name for name, count in passed.items() if count)


def overload_and_recovery() -> Result:
    """T23: 70, then 200, then 70 percent of the capacity."""
    begins, ends, seconds = 20.0, 40.0, 60.0

    async def play(settings: Shedding | None) -> tuple[list[Call], list[tuple[float, bool]]]:
        pod = SheddingPod(WORKERS, Vendor(SERVICE_S, seed=4), settings, (10, 50, 90))
        calls = await arrive(
            lambda at: CAPACITY * (2.0 if begins <= at < ends else 0.7),
            seconds,
            pod.serve,
            seed=5,
            level=lambda draw: draw.choice((10, 10, 50, 90)),
            drain_s=30,
        )
        await pod.stop()
        return calls, pod.switches

    (ours, switches), (theirs, _) = run_virtually(play(SETTINGS)), run_virtually(play(None))
    after = [call for call in ours if call.at >= ends + 5]
    on = next((at for at, active in switches if active), None)
    off = next((at for at, active in reversed(switches) if not active), None)
    result = Result(
        key="T23",
        title="Overload and recovery",
        traffic=f"70 % of {CAPACITY:.0f}/s, 200 % from {begins:.0f} to {ends:.0f} s, then 70 % again;"
        " three tiers. The SLA of the route is 200 ms; the pod measures only its requests.",
        expected="Shedding begins at once, ends by itself soon after the load falls, and does not flutter.",
        charts=(
            Chart(
                "Served requests per second",
                "seconds",
                "requests per s",
                {
                    "offered": line(ours, lambda some: float(len(some))),
                    "served, with the agent": line(ours, lambda some: float(sum(c.served for c in some))),
                },
                {"capacity": CAPACITY},
            ),
            Chart(
                "p95 of the time of a served request",
                "seconds",
                "ms",
                {
                    "with the agent": line(ours, lambda some: _ms(times(some, 0.95))),
                    "without": line(theirs, lambda some: _ms(times(some, 0.95))),
                },
                most=2000,
            ),
        ),
        table=(
            ("", "shedding began", "ended", "switches", "p95 in the last 15 s"),
            ("with the agent", _at(on), _at(off), str(len(switches)), ms(times(after, 0.95))),
            ("without", "-", "-", "-", ms(times([call for call in theirs if call.at >= ends + 5], 0.95))),
        ),
    )
    result.check(f"Shedding begins {_at(on)}", on is not None and begins <= on <= begins + 1.5)
    result.check(
        f"It ends {_at(off)}, within 5 s of the end of the overload", off is not None and off <= ends + 5
    )
    result.check(f"It switches {len(switches)} times", len(switches) == 2)
    lost = sum(not call.served for call in after)
    result.check(f"After that {lost} of {len(after)} requests are refused", lost == 0)
    return result


def _at(moment: float | None) -> str:
    return "never" if moment is None else f"at {moment:.2f} s"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
