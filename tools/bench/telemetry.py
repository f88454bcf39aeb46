"""What OpenTelemetry costs a decision: switched off, without an SDK, with one, and in a span that records.

The same decision of a pod without Redis, so that nothing but the agent is measured. Agents take turns in
short rounds, and ratios are of pairs. Run it as ``python tools/bench/telemetry.py``.
"""

import asyncio
import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, say
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from fuseboard import Agent
from fuseboard.contract.policy import Dependency, Limit, Policy, Tier
from tests.agents.alone import settings_with

ROUNDS, TIMES = 41, 1_000
#: Events of one span; the SDK keeps 128.
IN_SPAN = 100
ROOMY = Limit(name="requests", limit=10**6, window_ms=60_000, burst=10**6)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free", quotas=(ROOMY,)),),
    dependencies=(Dependency(name="llm", vendor_limits=(ROOMY,)),),
)


async def ns_each(agent):
    began = perf_counter()
    for _ in range(TIMES):
        await agent.admit_request("acme")
    return (perf_counter() - began) / TIMES * 1e9


async def compare(off, on, surround=None):
    """Nanoseconds of a decision without and with, and the median ratio of pairs."""
    pairs = []
    for _ in range(ROUNDS):
        without = await ns_each(off)
        pairs.append((without, await (ns_each(on) if surround is None else surround(on))))
    pairs = pairs[1:]
    return median(a for a, _ in pairs), median(b for _, b in pairs), median(b / a for a, b in pairs)


def in_spans(tracer):
    async def ns_in_spans(agent):
        took = 0.0
        for _ in range(TIMES // IN_SPAN):
            with tracer.start_as_current_span("order"):
                began = perf_counter()
                for _ in range(IN_SPAN):
                    await agent.admit_request("acme")
                took += perf_counter() - began
        return took / TIMES * 1e9

    return ns_in_spans


async def main():
    logging.getLogger("fuseboard").setLevel(logging.ERROR)  # Redis is down on purpose
    bars = Bars()
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_with(Path(folder), POLICY)
        async with Agent(settings=settings) as off, Agent(settings=replace(settings, otel=True)) as on:
            found = {"no_sdk": await compare(off, on)}
            metrics.set_meter_provider(MeterProvider(metric_readers=[InMemoryMetricReader()]))
            found["sdk"] = await compare(off, on)
            found["recording_span"] = await compare(off, on, in_spans(TracerProvider().get_tracer("bench")))
    for name, (without, with_it, _) in found.items():
        say(f"a decision, {name}: {without:,.0f} ns off, {with_it:,.0f} ns on")
    for name, bar in (("no_sdk", 1.5), ("sdk", 4), ("recording_span", 10)):
        bars.ratio_at_most(f"telemetry_{name}_vs_off", found[name][2], bar)
    return bars.status


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
