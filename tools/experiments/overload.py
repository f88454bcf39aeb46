"""T26: three times the capacity, with what the forms suggest: the bulkhead and the shedding agree."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.contract.protection import PodProtection, Shedding
from fuseboard.contract.words import WhenFull
from fuseboard.protection.bulkhead import Bulkhead, NoSlotError
from fuseboard.protection.pod import Pod
from fuseboard.protection.shedding import Shed, Shedder
from tests.agents.guarded_pods import PRESET
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.overload_process import overloaded_process
from tools.experiments.result import Result, ms
from tools.experiments.shedding_pod import TICK_S
from tools.experiments.traffic import Call, Vendor, arrive, line, times

SLOTS, SERVICE_S, SECONDS, WARM_S = 40, 0.5, 60.0, 10.0
CAPACITY = SLOTS / SERVICE_S
#: Tier -> its priority.
TIERS = {"free": 10, "pro": 50, "gold": 90}
#: What the form of the pods' protection suggests.
SHEDDING = Shedding(queue_max=20)
NEW = msgspec.structs.replace(PRESET, max_concurrent=SLOTS)
#: A bulkhead of an older version: 14 slots for calls without a tier, and no queue for them.
OLD = Settings(max_concurrent=SLOTS)
#: The bulkhead refuses at once, and its queue is never as long as the shedding allows.
ABORTING = msgspec.structs.replace(
    NEW, when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD), queues=(0, 0, 0)
)


class Bulkheads:
    """Implements ``CallLoads`` for one bulkhead."""

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead

    def waiting(self) -> int:
        return self._bulkhead.waiting

    def refused(self) -> int:
        return sum(tier.full + tier.timed_out for tier in self._bulkhead.tiers)

    def slots(self) -> float:
        limits = sum(pool.limit for pool in self._bulkhead.pools)
        return self._bulkhead.in_flight / limits if self._bulkhead.waiting else 0.0

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        self._bulkhead.resize_for_pressure(cpu, memory, now)


@dataclass(frozen=True)
class Parts:
    """How much was served: beside the capacity, and of what each tier asked."""

    goodput: float
    of: dict[str, float]

    def holds(self) -> bool:
        return self.goodput >= 0.9 and self.of["gold"] >= 0.8 and self.of["gold"] >= 5 * self.of["free"]

    def words(self) -> str:
        tiers = ", ".join(f"{tier} {100 * part:.0f} %" for tier, part in self.of.items())
        return f"goodput {100 * self.goodput:.0f} % of the capacity; {tiers}"


def parts_of(calls: list[Call], *, seconds: float, warm_s: float, capacity: float) -> Parts:
    steady = [call for call in calls if call.at >= warm_s]
    of = {}
    for tier, level in TIERS.items():
        mine = [call for call in steady if call.level == level]
        of[tier] = sum(call.served for call in mine) / len(mine)
    return Parts(sum(call.served for call in steady) / (capacity * (seconds - warm_s)), of)


def overload() -> Result:
    new = run_virtually(_play(NEW, SHEDDING))
    rows = {
        "a new bulkhead, and the suggested shedding": new,
        "a bulkhead of an older version": run_virtually(_play(OLD, Shedding())),
        "a bulkhead without a queue": run_virtually(_play(ABORTING, SHEDDING)),
        "without shedding": run_virtually(_play(NEW, None)),
    }
    found = {name: _parts(calls) for name, calls in rows.items()}
    ours = found["a new bulkhead, and the suggested shedding"]
    result = Result(
        key="T26",
        title="Shedding and bulkheads agree",
        traffic=f"{3 * CAPACITY:.0f} requests per s in three tiers of equal size. Each calls a vendor, and"
        f" names no tier of the call; {SLOTS} slots finish {CAPACITY:.0f} per s.",
        expected="The pod serves what it can, and the highest tier gets it: a full bulkhead knows no tiers of"
        " tenants.",
        charts=(
            Chart(
                "Served requests per second",
                "seconds",
                "requests per s",
                {
                    tier: line(
                        [call for call in new if call.level == level],
                        lambda some: float(sum(call.served for call in some)),
                    )
                    for tier, level in TIERS.items()
                },
                {"capacity": CAPACITY},
            ),
        ),
        table=(
            ("", "goodput", *TIERS, "p99"),
            *(
                (
                    name,
                    f"{100 * found[name].goodput:.0f} %",
                    *(f"{100 * part:.0f} %" for part in found[name].of.values()),
                    ms(times(calls, 0.99)),
                )
                for name, calls in rows.items()
            ),
        ),
    )
    result.check(ours.words(), ours.holds())
    aborting = found["a bulkhead without a queue"]
    result.check(
        f"Without a queue: {aborting.words()}", aborting.goodput >= 0.7 and aborting.of["gold"] >= 0.5
    )
    return result


def overload_in_real_time() -> Result:
    """The same, and a pod of FastAPI on uvicorn."""
    result = overload()
    calls, slowest_probe_s, capacity, seconds, warm_s = overloaded_process(SHEDDING, SLOTS, TIERS)
    parts = parts_of(calls, seconds=seconds, warm_s=warm_s, capacity=capacity)
    result.check(f"A real pod: {parts.words()}", parts.holds())
    result.check(f"Its liveness probe takes {ms(slowest_probe_s)} at most", slowest_probe_s <= 2.0)
    return result


def _parts(calls: list[Call]) -> Parts:
    return parts_of(calls, seconds=SECONDS, warm_s=WARM_S, capacity=CAPACITY)


async def _play(settings: Settings, shedding: Shedding | None) -> list[Call]:
    loop = asyncio.get_running_loop()
    bulkhead = Bulkhead(settings, expected_s=SERVICE_S, clock=loop.time)
    priorities = tuple(TIERS.values())
    pod = Pod(PodProtection(shedding=shedding), priorities, calls=Bulkheads(bulkhead), clock=loop.time)
    if shedding is not None:
        # Draws the same numbers in each run.
        pod.shedder = Shedder(shedding, priorities, seed=11)
    ticking = asyncio.ensure_future(_tick(pod, loop.time))
    vendor = Vendor(SERVICE_S, seed=1)

    async def serve(call: Call) -> None:
        visit = pod.enter("GET /", call.level, f"source-{call.level}")
        if isinstance(visit, Shed):
            call.outcome = "shed"
            return
        try:
            seat = await bulkhead.enter(1)
        except NoSlotError as error:
            call.outcome = str(error.reason)
            visit.answered(503)
        else:
            began = loop.time()
            await vendor.work()
            bulkhead.leave(seat, loop.time() - began, loop.time())
            call.outcome = "served"
            visit.answered(200)
        finally:
            visit.leave()

    calls = await arrive(
        lambda at: 3 * CAPACITY,
        SECONDS,
        serve,
        seed=3,
        level=lambda draw: draw.choice(tuple(TIERS.values())),
        drain_s=10,
    )
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    return calls


async def _tick(pod: Pod, clock: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        pod.tick(clock())
