"""T6: many calls at once at one pod with slots, a queue and a local rate."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec

from fuseboard.batching.redis_question import ADMITS
from fuseboard.composition import compose_admission
from fuseboard.contract.policy import Tuning
from fuseboard.contract.protection import CallProtection, LocalRate
from fuseboard.contract.scripts import ADMIT, Script
from fuseboard.contract.words import CallTier, Mode, Outcome, WhenFull
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.store.store import OnReply, Word
from tests.agents.guarded_pods import PRESET
from tests.agents.models.pods import NAME, HeldStore, VirtualTime
from tests.agents.servers import POLICY, configured
from tests.virtual_loop import run_virtually
from tools.experiments.chart import Chart
from tools.experiments.result import Result, ms
from tools.experiments.traffic import Call, Vendor, one_tier, without_agent

CALLS, SLOTS, TIMEOUT_S, PROBE_S = 500, 50, 5.0, 0.05
RATE = LocalRate(limit=80, window_ms=60_000)
PROTECTION = CallProtection(
    tier=CallTier.CRITICAL,
    bulkhead=one_tier(
        SLOTS,
        queues=(CALLS, 0, 0),
        queue_timeout_ms=int(TIMEOUT_S * 1000),
        when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD),
    ),
    local_rate=RATE,
)


class LoopTime(VirtualTime):
    """The time of the loop that runs."""

    def __init__(self) -> None:
        """Nothing to set: the loop has the time."""

    @property
    def now(self) -> float:  # type: ignore[override]
        return 1000.0 + asyncio.get_running_loop().time()


class GrantingStore(HeldStore):
    """A Redis that grants every call at once: its breaker is closed, and there is no limit."""

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        loop = asyncio.get_running_loop()
        now_us = int((1000.0 + loop.time()) * 1_000_000)
        reply: object = [0, 0, 1, 0, now_us, 0, 0, 0]
        if script is ADMIT:
            reply = msgspec.msgpack.encode([ADMITS, 1, 0, now_us, "", []])
        loop.call_soon(on_reply, reply)


def local_capacity() -> Result:
    long, short = run_virtually(_in_virtual_time(30.0)), run_virtually(_in_virtual_time(2.0))
    new = run_virtually(_in_virtual_time(2.0, CallProtection(bulkhead=PRESET)))
    alone = run_virtually(_without(2.0))

    def split(calls: list[Call]) -> tuple[int, int, Counter[str]]:
        """Served at once, served after a wait, and the reasons of the others."""
        served = [call for call in calls if call.served]
        at_once = sum(call.wait_s == 0 for call in served)
        return at_once, len(served) - at_once, Counter(str(c.outcome) for c in calls if not c.served)

    rows = []
    for name, calls in (
        ("30 s", long),
        ("2 s", short),
        ("2 s, a new dependency, no tier", new),
        ("2 s, without the agent", alone),
    ):
        at_once, later, refused = split(calls)
        last = max(call.ended for call in calls)
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items())) or "-"
        rows.append((name, str(at_once), str(later), str(sum(refused.values())), why, f"{last:.1f} s"))
    result = Result(
        key="T6",
        title="500 calls at once",
        traffic=f"{CALLS} calls at the same moment at one pod with {SLOTS} slots, {RATE.limit} calls per"
        " minute, a queue for all of them, and a queue timeout of 5 s. A call takes 30 s, or 2 s.",
        expected="30 s: 50 at once, no slot becomes free, 450 refused. 2 s: 50 at once, about 30 after"
        " 2 s, the rest refused within 5 s. The pod answers its liveness probe all the time.",
        charts=(
            Chart(
                "Calls that have an answer, calls of 2 s",
                "seconds",
                "calls",
                {"with the agent": _answered(short), "without": _answered(alone)},
            ),
        ),
        table=(("a call takes", "at once", "later", "refused", "why", "last answer"), *rows),
    )
    at_once, later, refused = split(long)
    result.check(
        f"30 s: {at_once} / {later} / {sum(refused.values())}",
        (at_once, later, refused) == (50, 0, Counter(queue_timeout=450)),
    )
    at_once, later, refused = split(short)
    result.check(
        f"2 s: {at_once} / {later} / {sum(refused.values())}",
        at_once == 50 and 30 <= later <= 36 and at_once + later + sum(refused.values()) == CALLS,
    )
    at_once, later, refused = split(new)
    result.check(
        f"2 s, what a new dependency gets: {at_once} / {later} / {sum(refused.values())}",
        (at_once, later, refused) == (50, 30, Counter(bulkhead_full=420)),
    )
    waited = max(call.took_s for call in short + long + new if not call.served)
    result.check(f"The last refusal comes after {waited:.2f} s", waited <= TIMEOUT_S + 0.01)
    return result


def local_capacity_in_real_time() -> Result:
    """The same, and how long a liveness probe waits for the loop meanwhile."""
    result = local_capacity()
    calls, late = asyncio.run(_with_agent(2.0, PROTECTION))
    served = sum(call.served for call in calls)
    result.check(f"In real time: {served} served, {CALLS - served} refused", 80 <= served <= 86)
    result.check(f"The liveness probe waits {ms(max(late))} at most", max(late) <= 0.1)
    return result


async def _in_virtual_time(latency_s: float, protection: CallProtection = PROTECTION) -> list[Call]:
    with LoopTime().applied():
        calls, _ = await _with_agent(latency_s, protection)
    return calls


async def _with_agent(latency_s: float, protection: CallProtection) -> tuple[list[Call], list[float]]:
    """The calls, and how late each liveness probe ran."""
    loop = asyncio.get_running_loop()
    dependency = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=(), protection=protection)
    policy = msgspec.structs.replace(
        POLICY, dependencies=(dependency,), tuning=Tuning(store_deadline_us=4_000)
    )
    admission = compose_admission(
        configuration=configured(policy),
        counters=Counters(),
        store=GrantingStore(),
        server="web-1",
        environment="production",
        on_change=lambda: None,
    )
    admission.health._change(Mode.SHARED, "the experiment")
    late: list[float] = []
    probing = asyncio.ensure_future(_probe(late))

    async def one() -> Call:
        call = Call(at=loop.time(), level=0)
        try:
            permit = await admission.admit_call(NAME)
        except Refused as refused:
            call.outcome, call.ended = str(refused.decision.reason), loop.time()
            return call
        call.outcome, call.wait_s = "served", loop.time() - call.at
        await asyncio.sleep(latency_s)
        admission.report(permit, Outcome.OK)
        call.ended = loop.time()
        return call

    calls = await asyncio.gather(*(one() for _ in range(CALLS)))
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)
    return list(calls), late


async def _without(latency_s: float) -> list[Call]:
    serve = without_agent(SLOTS, Vendor(latency_s, seed=1, spread="fixed"))
    loop = asyncio.get_running_loop()

    async def one() -> Call:
        call = Call(at=loop.time(), level=0)
        await serve(call)
        call.ended = loop.time()
        return call

    return list(await asyncio.gather(*(one() for _ in range(CALLS))))


async def _probe(late: list[float]) -> None:
    """How much later than due the loop runs a liveness probe."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PROBE_S
        await asyncio.sleep(PROBE_S)
        late.append(loop.time() - due)


def _answered(calls: list[Call]) -> list[tuple[float, float]]:
    ends = sorted(call.ended for call in calls)
    return [(0.0, 0.0), *((at, float(number)) for number, at in enumerate(ends, 1))]
