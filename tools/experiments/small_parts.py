"""T18: an open breaker, a full bulkhead, and a fallback, each with one dependency."""

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path

from fuseboard import Agent, Default
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy, Tier
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import CallTier, WhenFull
from fuseboard.errors import Refused
from tests.agents.alone import settings_with
from tools.experiments.chart import Chart
from tools.experiments.result import Result

FAILURES, CALLS = 5, 8
ONE_AND_ONE = Bulkhead(
    max_concurrent=1,
    queues=(1, 1, 1),
    queue_timeout_ms=5_000,
    when_full=(WhenFull.QUEUE, WhenFull.QUEUE, WhenFull.QUEUE),
)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(
        Dependency(name="failing", breaker=BreakerPolicy(consecutive_failures=FAILURES, minimum_servers=1)),
        Dependency(name="narrow", protection=CallProtection(tier=CallTier.CRITICAL, bulkhead=ONE_AND_ONE)),
    ),
)


def small_parts() -> Result:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_play(Path(folder)))


async def _play(folder: Path) -> Result:
    async with Agent(settings=settings_with(folder, POLICY)) as agent:

        async def fail() -> str:
            async with agent.call("failing"):
                raise ConnectionResetError("the vendor is down")

        answers = [await _outcome(fail()) for _ in range(CALLS)]
        let_go = asyncio.Event()

        async def hold() -> str:
            async with agent.call("narrow"):
                await let_go.wait()
            return "made"

        calls = []
        for _ in range(3):
            calls.append(asyncio.ensure_future(_outcome(hold())))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        third = await calls[2]
        let_go.set()
        narrow = [await calls[0], await calls[1], third]
        answer = await agent.fallback("failing", [Default("please try later")]).run(fail)
    made = [answer == "ConnectionResetError" for answer in answers]
    result = Result(
        key="T18",
        title="Breaker, bulkhead and fallback, one by one",
        traffic=f"{CALLS} calls to a vendor that fails; three calls at once with one slot and one place in"
        " the queue; a call with a default.",
        expected=f"After {FAILURES} failures the next call is refused; the third call at once is refused; the"
        " fallback answers and says so.",
        charts=(
            Chart(
                "Calls that reach the vendor",
                "call",
                "calls",
                {"reached": [(number, float(sum(made[:number]))) for number in range(CALLS + 1)]},
                {"failures until it opens": float(FAILURES)},
            ),
        ),
        table=(
            ("", "outcome"),
            ("calls to the failing vendor", ", ".join(answers)),
            ("three calls at once", ", ".join(narrow)),
            (
                "the call with a fallback",
                f"{answer.value!r} from {answer.source}, because of {answer.reason}",
            ),
        ),
    )
    result.check(
        f"The first {sum(made)} calls fail, the others are refused",
        made == [True] * FAILURES + [False] * (CALLS - FAILURES)
        and set(answers[FAILURES:]) == {"breaker_open"},
    )
    result.check("Of three calls at once the third is refused", narrow == ["made", "made", "bulkhead_full"])
    result.check(
        "The fallback answers, and is marked",
        (answer.source, answer.is_fallback, answer.is_degraded) == ("default", True, True),
    )
    return result


async def _outcome(call: Awaitable[str]) -> str:
    try:
        return await call
    except Refused as refused:
        return str(refused.decision.reason)
    except ConnectionResetError as error:
        return type(error).__name__
