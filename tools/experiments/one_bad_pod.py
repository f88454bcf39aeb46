"""T2: calls of one pod fail. Its own breaker opens; the fleet's opens when a second pod sees failures."""

import asyncio
import random
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy, Tier
from fuseboard.contract.words import BreakerState, Outcome
from fuseboard.errors import Refused
from tests.agents.servers import PATIENT, Server, configured, running
from tools.experiments.chart import Chart
from tools.experiments.result import Result

NAME, PER_S, PODS = "vendor", 40.0, 4
OPEN_S = 1.0
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(
        Dependency(
            name=NAME,
            breaker=BreakerPolicy(
                consecutive_failures=5,
                failure_percent=40,
                minimum_calls=20,
                window_s=10,
                open_ms=int(OPEN_S * 1000),
                successes_to_close=2,
                minimum_servers=2,
            ),
        ),
    ),
    tuning=PATIENT,
)


class Caller:
    """One pod that makes calls. ``failing`` is the part of them that fails; ``None`` for no calls."""

    def __init__(self, pod: Server, seed: int, start: float) -> None:
        self.pod, self.failing = pod, 0.0
        self.calling = True
        self._draw, self._start = random.Random(seed), start
        #: (moment, ``ok``, ``failure`` or ``refused``)
        self.seen: list[tuple[float, str]] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._draw.expovariate(PER_S))
            if self.calling:
                self.seen.append((monotonic() - self._start, await self.call()))

    async def call(self) -> str:
        try:
            permit = await self.pod.admission.admit_call(NAME)
        except Refused:
            return "refused"
        failed = self._draw.random() < self.failing
        self.pod.admission.report(permit, Outcome.FAILURE if failed else Outcome.OK)
        return "failure" if failed else "ok"

    def refusals(self, begin: float, end: float) -> tuple[int, int]:
        """Refused calls in this time, and all of them."""
        some = [word for at, word in self.seen if begin <= at < end]
        return some.count("refused"), len(some)

    @property
    def generation(self) -> int:
        """Of the fleet's breaker, as this pod knows it."""
        return self.pod.admission.breaker_views()[0].generation

    def state(self) -> tuple[BreakerState, bool]:
        """The state that the pod sees, and whether it is its own alone."""
        view = self.pod.admission.breaker_views()[0]
        return view.state, view.local


def one_bad_pod() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        valkey.start()
        try:
            return asyncio.run(_play(valkey.url))
        finally:
            valkey.stop()


async def _play(url: str) -> Result:
    async with AsyncExitStack() as stack:
        start = monotonic()
        callers = [
            Caller(
                await stack.enter_async_context(
                    running(url, f"pod-{n}", configured(POLICY, live_servers=PODS))
                ),
                n,
                start,
            )
            for n in range(PODS)
        ]
        bad, second, *others = callers
        tasks = [asyncio.ensure_future(caller.run()) for caller in callers]

        def now() -> float:
            return monotonic() - start

        await asyncio.sleep(1.0)
        generations = [others[0].generation]
        bad.failing, begun = 0.5, now()
        opened = await _when(lambda: bad.state()[0] is not BreakerState.CLOSED)
        calls_until = sum(begun <= at for at, _ in bad.seen)
        await asyncio.sleep(3.0)
        generations.append(others[0].generation)
        alone = [caller.refusals(begun, now()) for caller in (second, *others)]
        bad.failing, mended = 0.0, now()
        await _when(lambda: bad.state()[0] is BreakerState.CLOSED)
        recovered_s = now() - mended
        # The vendor fails for two pods, and the others make no calls meanwhile.
        for caller in others:
            caller.calling = False
        bad.failing = second.failing = 1.0
        fails = now()
        await _when(lambda: second.generation > generations[-1])
        tripped_s = now() - fails
        # The next call of a pod that saw no failure. With a subscription it would know already.
        answer = await others[0].call()
        generations.append(others[0].generation)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    refused = sum(count for count, _ in alone)
    made = sum(count for _, count in alone)
    result = Result(
        key="T2",
        title="One bad pod",
        traffic=f"{PODS} pods make {PER_S:.0f} calls per s each. Half of the calls of one pod fail; then"
        " none; then all calls of two pods fail.",
        expected="Only the bad pod refuses calls, and it recovers after its failures end. When two pods see"
        " failures, the breaker of the fleet opens for all.",
        charts=(
            Chart(
                "Refused calls per half second",
                "seconds",
                "calls",
                {
                    "the bad pod": _refused_line([bad]),
                    "a second pod": _refused_line([second]),
                    "the others": _refused_line(others),
                },
            ),
        ),
        table=(
            (
                "calls until the pod's breaker opened",
                "after",
                "refused by the others meanwhile",
                "closed again",
            ),
            (
                str(calls_until),
                f"{opened:.2f} s",
                f"{refused} of {made}",
                f"{recovered_s:.2f} s after the end",
            ),
        ),
    )
    result.check(f"The bad pod's own breaker opens after {calls_until} calls", calls_until > 0)
    result.check(f"The other pods refuse {refused} of {made} calls", refused == 0 and made > 100)
    result.check("The breaker of the fleet does not change", generations[0] == generations[1])
    result.check(f"The bad pod recovers in {recovered_s:.1f} s", recovered_s < 20)
    result.check(
        f"When two pods fail, the fleet's breaker opens in {tripped_s:.2f} s: the next call of another pod is"
        " refused",
        answer == "refused" and generations[2] > generations[1],
    )
    return result


async def _when(holds: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    began = monotonic()
    while not holds():
        if monotonic() - began > 30:
            raise TimeoutError("not within 30 s")
        await asyncio.sleep(0.005)
    return monotonic() - began


def _refused_line(callers: list[Caller], step_s: float = 0.5) -> list[tuple[float, float]]:
    seen = [(at, word) for caller in callers for at, word in caller.seen]
    last = max(at for at, _ in seen)
    return [
        (step * step_s, float(sum(word == "refused" and int(at / step_s) == step for at, word in seen)))
        for step in range(int(last / step_s) + 1)
    ]
