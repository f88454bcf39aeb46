"""T19: optional calls fill their slots, and critical calls do not notice."""

import asyncio
from collections.abc import Callable

from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.protection.bulkhead import Bulkhead
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms, share
from tools.experiments.traffic import Call, Serve, Vendor, arrive, line, times, with_bulkhead, without_agent

SLOTS, SERVICE_S, SECONDS = 20, 0.050, 60.0
#: Optional calls come in this part of the time, at many times what their slots can do.
FLOOD = (20.0, 40.0)
CRITICAL_PER_S, FLOOD_PER_S = 100.0, 1500.0


def bulkhead_isolation() -> Result:
    async def play(serving: Callable[[Vendor], Serve]) -> tuple[list[Call], list[Call]]:
        serve = serving(Vendor(SERVICE_S, seed=8))

        async def optional() -> list[Call]:
            await asyncio.sleep(FLOOD[0])
            return await arrive(
                lambda at: FLOOD_PER_S, FLOOD[1] - FLOOD[0], serve, seed=7, level=lambda draw: 2, drain_s=30
            )

        critical, flood = await asyncio.gather(
            arrive(lambda at: CRITICAL_PER_S, SECONDS, serve, seed=6, drain_s=30), optional()
        )
        return critical, flood

    async def protected(*, share_idle: bool = False) -> tuple[list[Call], list[Call]]:
        bulkhead = Bulkhead(Settings(max_concurrent=SLOTS, share_idle=share_idle))
        return await play(lambda vendor: with_bulkhead(bulkhead, vendor, lambda call: call.level))

    async def unprotected() -> tuple[list[Call], list[Call]]:
        return await play(lambda vendor: without_agent(SLOTS, vendor))

    (ours, flood), (theirs, _) = run_virtually(protected()), run_virtually(unprotected())
    shared, flood_of_shared = run_virtually(protected(share_idle=True))

    def during(calls: list[Call]) -> list[Call]:
        return [call for call in calls if FLOOD[0] <= call.at < FLOOD[1]]

    def before(calls: list[Call]) -> list[Call]:
        return [call for call in calls if call.at < FLOOD[0]]

    quiet, busy = times(before(ours), 0.95) or 0.0, times(during(ours), 0.95) or 0.0
    lost = [call for call in ours if not call.served]
    quiet_shared, busy_shared = times(before(shared), 0.95) or 0.0, times(during(shared), 0.95) or 0.0
    lost_shared = [call for call in shared if not call.served]
    result = Result(
        key="T19",
        title="A bulkhead isolates the tiers",
        traffic=f"{SLOTS} slots, 10/7/3 by tier. {CRITICAL_PER_S:.0f} critical calls per s for {SECONDS:.0f}"
        f" s; {FLOOD_PER_S:.0f} optional calls per s from {FLOOD[0]:.0f} to {FLOOD[1]:.0f} s.",
        expected="The times of critical calls do not change while optional calls find no slot.",
        charts=(
            Chart(
                "p95 of critical calls",
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
            ("critical calls", "p95 before", "p95 during the flood", "refused"),
            ("with the agent", ms(quiet), ms(busy), share(len(lost), len(ours))),
            ("with share_idle", ms(quiet_shared), ms(busy_shared), share(len(lost_shared), len(shared))),
            ("without", ms(times(before(theirs), 0.95)), ms(times(during(theirs), 0.95)), "0.0 %"),
        ),
    )
    result.check(f"p95 is {ms(quiet)} before and {ms(busy)} during the flood", busy <= 1.15 * quiet)
    result.check(f"{len(lost)} of {len(ours)} critical calls are refused", len(lost) <= len(ours) // 100)
    result.check(
        f"With share_idle: {ms(quiet_shared)}, {ms(busy_shared)}, and {len(lost_shared)} refused",
        busy_shared <= 1.15 * quiet_shared and len(lost_shared) <= len(shared) // 100,
    )
    turned_away = sum(not call.served for call in flood_of_shared)
    result.check(
        f"With share_idle, {share(turned_away, len(flood_of_shared))} of the optional calls are refused",
        turned_away > 0.9 * len(flood_of_shared),
    )
    turned_away = sum(not call.served for call in flood)
    result.check(
        f"{share(turned_away, len(flood))} of the optional calls are refused", turned_away > 0.9 * len(flood)
    )
    return result


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
