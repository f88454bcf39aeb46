"""T9: how large a local rate may be so that slots suffice."""

from controlplane.policies.sizing import suggested_rate
from fuseboard.contract.protection import LocalRate
from fuseboard.contract.words import WhenFull
from fuseboard.protection.bulkhead import Bulkhead
from fuseboard.protection.local_rate import LocalRate as Rate
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, share
from tools.experiments.traffic import Call, Serve, Vendor, arrive, line, one_tier, with_bulkhead

SLOTS, LATENCY_S, SECONDS, OFFERED_PER_S = 50, 30.0, 1800.0, 2.5


def sizing() -> Result:
    limit = suggested_rate(SLOTS, LATENCY_S * 1000)

    async def play(rate: LocalRate | None) -> list[Call]:
        settings = one_tier(SLOTS, when_full=(WhenFull.ABORT, WhenFull.ABORT, WhenFull.DISCARD))
        inner = with_bulkhead(Bulkhead(settings), Vendor(LATENCY_S, seed=3, spread="exponential"))
        bucket = Rate(rate) if rate is not None else None

        async def serve(call: Call) -> None:
            if bucket is not None and bucket.take(1000.0 + call.at) > 0:
                call.outcome = "local_rate"
                return
            await inner(call)

        serving: Serve = serve
        return await arrive(lambda at: OFFERED_PER_S, SECONDS, serving, seed=9, drain_s=300)

    ours = run_virtually(play(LocalRate(limit=limit)))
    theirs = run_virtually(play(None))

    def full(calls: list[Call]) -> int:
        return sum(call.outcome == "bulkhead_full" for call in calls)

    def made(calls: list[Call]) -> int:
        return len(calls) - sum(call.outcome == "local_rate" for call in calls)

    parts = full(ours) / made(ours), full(theirs) / made(theirs)
    result = Result(
        key="T9",
        title="The size of a local rate",
        traffic=f"{SLOTS} slots, calls of {LATENCY_S:.0f} s on average, {OFFERED_PER_S:g} calls per s for"
        f" {SECONDS / 60:.0f} minutes, with the suggested local rate and without one.",
        expected="The suggestion with a margin of 0.8 is 80 calls per minute. With it, hardly any admitted"
        " call finds all slots in use.",
        charts=(
            Chart(
                "Admitted calls that find no slot, per minute",
                "seconds",
                "calls",
                {
                    "with the local rate": line(ours, lambda some: float(full(some)), step_s=60),
                    "without": line(theirs, lambda some: float(full(some)), step_s=60),
                },
            ),
        ),
        table=(
            ("", "calls per minute", "admitted", "found no slot"),
            ("with the local rate", str(limit), str(made(ours)), share(full(ours), made(ours))),
            ("without", f"{OFFERED_PER_S * 60:g}", str(made(theirs)), share(full(theirs), made(theirs))),
        ),
    )
    result.check(f"The suggestion is {limit} calls per minute", limit == 80)
    result.check(
        f"{100 * parts[0]:.1f} % of the admitted calls find no slot, without the rate {100 * parts[1]:.0f} %",
        parts[0] < 0.05 and parts[1] > 0.25,
    )
    return result
