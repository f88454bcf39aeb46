"""Redis is lost in the middle of a budget, and then its data: what two pods with real clients spend."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import openai
import redis
from msgspec.structs import replace

import fuseboard
from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings, Mode, Reason, Refused
from fuseboard.contract.models import Price
from fuseboard.contract.words import Period
from tests.agents.published import publish
from tests.agents.servers import TUNING
from tests.llm.money import CLAUDE, GPT, NEVER_OPENS, charge, monthly, of_tenant, priced
from tests.llm.pods import gpt
from tests.llm.test_fleets_that_spend import zone
from tests.llm.vendor import Vendor
from tests.waiting import eventually

AMOUNT = 200_000
TOKEN = Price(starts_at_s=0, input=1_000_000, cached=1_000_000, written=1_000_000, output=1_000_000)
PRICES = {GPT: TOKEN, CLAUDE: TOKEN}
RULES = replace(
    priced(
        prices=PRICES,
        of_tenants=monthly(AMOUNT, period=Period.DAY, time_zone=zone()),
        limits=(),
        breaker=NEVER_OPENS,
    ),
    tuning=replace(TUNING, store_timeouts=2),
)
ASKED: list[Any] = [{"role": "user", "content": "Do we go on without a counter? " * 4}]


class Pods:
    def __init__(self, agents: list[Agent], clients: list[openai.AsyncOpenAI], vendor: Vendor) -> None:
        self.agents, self.clients, self.vendor = agents, clients, vendor
        self._ledger = 0

    async def call(self, number: int) -> Refused | None:
        try:
            with fuseboard.tenant("acme"):
                await self.clients[number].chat.completions.create(
                    model=GPT, messages=ASKED, max_completion_tokens=2_000
                )
        except Refused as refused:
            return refused
        return None

    async def until_refused(self, number: int) -> Refused:
        while (refused := await self.call(number)) is None:
            """It goes on."""
        return refused

    @property
    def bill(self) -> int:
        return charge(*self.vendor.bill, prices=PRICES)

    @property
    def ledger(self) -> int:
        """What both pods have for the ledger, which needs no Redis."""
        for agent in self.agents:
            usage = agent.counters.usage
            for part in usage.next(leaving=True):
                usage.taken(part.number)
                self._ledger += sum(row.micro_usd for row in part.rows)
        return self._ledger

    async def known(self) -> None:
        """Each pod has looked at the budget since the last call."""
        kept = [agent._runtime.admission.redis_fallback.budgets for agent in self.agents]
        # The budgets of the tenant and of the account count the same.
        await eventually(
            lambda: [{one.amount for one in budgets._kept.values()} for budgets in kept],
            accept=lambda found: found == [{self.bill}] * len(kept),
        )

    async def all_in(self, mode: Mode) -> None:
        for agent in self.agents:
            await eventually(lambda agent=agent: agent.mode is mode)


@asynccontextmanager
async def two_pods(valkey: Valkey, folder: Path, vendor: Vendor) -> AsyncIterator[Pods]:
    def settings(number: int) -> AgentSettings:
        return AgentSettings(
            redis_url=valkey.url, server=f"web-{number}", state_dir=folder / f"state-{number}"
        )

    async with Agent(settings=settings(0)) as one, Agent(settings=settings(1)) as other:
        for agent in (one, other):
            await eventually(lambda agent=agent: agent.configuration.snapshot.head.revision == 1)
            agent.configuration.live_servers = 2
        async with gpt(one, vendor, "") as first, gpt(other, vendor, "") as second:
            yield Pods([one, other], [first, second], vendor)


async def test_a_lost_redis_neither_stops_the_calls_nor_refills_the_budget(
    valkey: Valkey, vendor: Vendor, tmp_path: Path
):
    """Case L7: Redis stops at half of a daily budget, comes back empty, and is flushed once more.

    Over the budget by at most what is spent from the loss until a pod has put back what it knew. It looks 4
    to 6 s after its next call, and two heartbeats are 10 s: here 0.06 USD in 4.4 s, of which 0.015 were over.
    The length of the outage changes nothing: a pod spends its share of what was left.
    """
    vendor.usual.words = 400
    with redis.Redis.from_url(valkey.url) as limits:
        publish(limits, RULES, revision=1)
        async with two_pods(valkey, tmp_path, vendor) as pods:
            while pods.bill < AMOUNT // 2:
                for number in (0, 1):
                    assert await pods.call(number) is None
            await eventually(lambda: of_tenant(limits), accept=lambda found: found == pods.bill)
            await pods.known()
            half = pods.bill

            valkey.stop()
            await pods.all_in(Mode.LOCAL)
            left, before = AMOUNT - half, pods.bill
            refused = await pods.until_refused(0)
            assert refused.decision.reason is Reason.BUDGET_SPENT
            # Without settling, reserves would leave room for far fewer calls.
            assert 0.8 * left / 2 < pods.bill - before <= left / 2
            for _ in range(10):
                assert await pods.call(1) is None, "the other pod has its own share"
            assert pods.ledger == pods.bill

            valkey.start()
            publish(limits, RULES, revision=1)
            await pods.all_in(Mode.SHARED)
            # The bill has what was spent before the outage, and during it.
            await eventually(lambda: of_tenant(limits), accept=lambda found: found == pods.bill)
            await pods.known()

            before, lost = pods.bill, monotonic()
            limits.flushall()
            publish(limits, RULES, revision=1)
            unknown, took_s = 0, 0.0
            refused_by: set[int] = set()
            while refused_by != {0, 1}:
                for number in (0, 1):
                    if await pods.call(number) is not None:
                        refused_by.add(number)
                if took_s == 0 and of_tenant(limits) >= before:
                    unknown, took_s = pods.bill - before, monotonic() - lost
            over = max(0, pods.bill - AMOUNT)
            assert took_s > 0
            assert over <= unknown
            # Nothing is refilled again.
            await eventually(lambda: of_tenant(limits), accept=lambda found: found == pods.bill)
            assert [await pods.call(number) is None for number in (0, 1)] == [False, False]
            assert pods.ledger == pods.bill
