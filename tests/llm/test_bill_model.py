"""A model: whatever becomes of calls, pods and Redis, the sum of all settlements is the vendor's bill."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import redis
from msgspec.structs import replace

import fuseboard
from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings, Mode
from fuseboard.batching import settlements
from fuseboard.contract.models import Price
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import DrillKind, Reason
from fuseboard.without_redis import drain, kept_budgets
from tests.agents.published import publish
from tests.agents.servers import DEADLINE_US, TUNING
from tests.llm.money import CLAUDE, GPT, NEVER_OPENS, of_account, of_tenant, priced
from tests.llm.pods import claude, gpt, held
from tests.llm.vendor import Vendor
from tests.waiting import eventually
from tools.demo.model_formats import Charged

#: A token of any kind costs a micro-USD.
TOKEN = Price(starts_at_s=0, input=1_000_000, cached=1_000_000, written=1_000_000, output=1_000_000)
RULES = replace(
    priced(prices={GPT: TOKEN, CLAUDE: TOKEN}, limits=(), breaker=NEVER_OPENS),
    # Short, so that calls are decided alone also where a machine is busy: the bill is the same.
    tuning=replace(TUNING, store_timeouts=2, store_deadline_us=DEADLINE_US - 1),
)
WORDS, STEPS = 30, 20
ASKED: list[Any] = [{"role": "user", "content": "What will be on the bill of this call? " * 20}]
SORRY = {
    GPT: {"code": "server_error", "message": "sorry"},
    CLAUDE: {"type": "overloaded_error", "message": "sorry"},
}
BROKEN = ("left", "canceled", "cut", "error event")
ENDS = ("whole", "stream", *BROKEN, 429, 500, 400)
#: The input of a broken stream is estimated from letters where the vendor has not named it.
INPUT_OFF = 0.1
#: Both accounts, and the tenant, have a budget.
BUDGETS = (GPT, CLAUDE, "acme")
#: Pods wait for a shorter time than usual.
QUICK = ((kept_budgets, "LOOK_S", 0.1), (drain, "SOON_S", 0.2), (settlements, "LATER_S", 0.1))


@dataclass
class World:
    """A vendor, a Redis, a pod that is restarted, and what the vendor charges."""

    valkey: Valkey
    vendor: Vendor
    folder: Path
    random: Random
    limits: redis.Redis
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    pods: int = 0
    bill: dict[str, int] = field(default_factory=lambda: {GPT: 0, CLAUDE: 0})
    #: By model: the bill of broken streams is known up to this much.
    unsure: dict[str, float] = field(default_factory=lambda: {GPT: 0.0, CLAUDE: 0.0})
    #: By model: what pods have reported for the ledger.
    ledger: dict[str, int] = field(default_factory=lambda: {GPT: 0, CLAUDE: 0})
    #: By budget: what it counts more than the ledger has, because of a loss that docs/budgets.md names.
    off: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BUDGETS, 0))
    #: The steps so far, and the ends of their calls.
    story: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """A pod begins, and learns how many letters a token has. It knows all budgets."""
        self.pods += 1
        settings = AgentSettings(
            redis_url=self.valkey.url, server=f"web-{self.pods}", state_dir=self.folder / "state"
        )
        self.agent = await self.stack.enter_async_context(Agent(settings=settings))
        self.clients = {
            GPT: await self.stack.enter_async_context(gpt(self.agent, self.vendor, "")),
            CLAUDE: await self.stack.enter_async_context(claude(self.agent, self.vendor, "")),
        }
        await eventually(lambda: self.agent.configuration.snapshot.head.revision == 1)
        await eventually(lambda: self.agent.mode is Mode.SHARED)
        for model in self.clients:
            await self.call(model, "stream", words=100)
        for _ in range(100):
            if len(self.known()) == len(BUDGETS):
                return
            # A busy machine: a call was decided alone.
            for model in self.clients:
                await self.call(model, "whole")
        raise AssertionError(f"the pod knows {sorted(self.known())} after {self.story[-20:]}")

    async def stop(self) -> None:
        await eventually(lambda: held(self.agent, "gpt") + held(self.agent, "claude") == 0)
        await self.stack.aclose()
        self.now()

    async def begin(self, model: str, *, stream: bool = True) -> Any:
        """Begin a call, once the vendor that answered 429 may be called again."""
        deadline = monotonic() + 30
        while True:
            try:
                return await self.ask(model, stream=stream)
            except (openai.APIConnectionError, anthropic.APIConnectionError) as refused:
                if Reason.COOLING_DOWN not in str(refused) or monotonic() > deadline:
                    raise
            await asyncio.sleep(0.001)

    async def ask(self, model: str, *, stream: bool) -> Any:
        options: dict[str, Any] = {"model": model, "messages": ASKED, "max_tokens": 400, "stream": stream}
        with fuseboard.tenant("acme"):
            if model == GPT:
                return await self.clients[GPT].chat.completions.create(**options)
            return await self.clients[CLAUDE].messages.create(**options)

    async def call(self, model: str, end: str | int, *, words: int = WORDS) -> None:
        """Make one call that ends this way."""
        at = self.random.randrange(words) if end in BROKEN else 0
        self.story.append(f"{model} {end} {at}")
        if isinstance(end, int):
            self.vendor.will(status=end, headers={"retry-after-ms": "1"} if end == 429 else {})
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
                await self.begin(model, stream=self.random.random() < 0.5)
            return
        self.prepare(model, end, words=words, at=at)
        answer = await self.begin(model, stream=end != "whole")
        charged = self.vendor.bill[-1]
        if end != "whole":
            await self.read(answer, end, charged, words=at)
        self.charge(model, end, charged, words=at)

    def prepare(self, model: str, end: str, *, words: int, at: int) -> None:
        self.vendor.held.clear()
        if end in ("cut", "error event"):
            self.vendor.will(words=words, after=at, cuts=end == "cut", error=SORRY[model])
        else:
            self.vendor.will(words=words, holds_after=at if end in BROKEN else None)

    async def read(self, stream: Any, end: str, charged: Charged, *, words: int) -> None:
        came = asyncio.Event()

        async def take() -> None:
            number = 0
            if words == 0:
                came.set()
            async for part in stream:
                number += " word" in str(part)
                if number == words:
                    came.set()

        if end == "stream":
            await take()
        elif end in ("cut", "error event"):
            with pytest.raises((openai.APIError, anthropic.APIError, httpx2.TransportError)):
                await take()
        else:
            reading = asyncio.create_task(take())
            await eventually(lambda: came.is_set() or reading.done())
            assert came.is_set(), reading
            # The first events have come too.
            await eventually(lambda: charged.sent == words)
            reading.cancel()
            await asyncio.wait([reading])
            if end == "left":
                await stream.close()
            self.vendor.held.set()

    def charge(self, model: str, end: str, charged: Charged, *, words: int) -> None:
        output = words if end in BROKEN else charged.output
        self.bill[model] += charged.input + output
        if end in BROKEN:
            self.unsure[model] += INPUT_OFF * charged.input + max(2, 0.2 * words)

    def freeze(self) -> None:
        assert self.valkey.process is not None
        self.valkey.process.send_signal(signal.SIGSTOP)

    async def thaw(self) -> None:
        assert self.valkey.process is not None
        self.valkey.process.send_signal(signal.SIGCONT)
        await eventually(lambda: self.agent.mode is Mode.SHARED)

    # The steps of a story

    async def one(self) -> None:
        await self.call(self.random.choice([GPT, CLAUDE]), self.random.choice(ENDS))

    async def together(self) -> None:
        self.vendor.usual.words = WORDS
        before = self.vendor.requests
        await asyncio.gather(*[self.begin(model, stream=False) for model in (GPT, CLAUDE) * 4])
        for charged in self.vendor.bill[before:]:
            self.bill[charged.body["model"]] += charged.input + charged.output

    async def lost_before(self) -> None:
        """Redis does not answer when the call begins."""
        self.freeze()
        await self.one()
        await self.thaw()

    async def lost_during(self) -> None:
        """Redis stops to answer in the middle of a stream, and answers again before or after its end."""
        model, end = self.random.choice([GPT, CLAUDE]), self.random.choice(["stream", "left"])
        at = self.random.randrange(1, WORDS)
        self.vendor.held.clear()
        self.vendor.will(words=WORDS, holds_after=at)
        stream = await self.begin(model)
        charged = self.vendor.bill[-1]
        await eventually(lambda: charged.sent == at)
        self.freeze()
        if back_first := self.random.random() < 0.5:
            # The pod notices it.
            await self.call(model, "whole")
            await self.thaw()
        if end == "stream":
            self.vendor.held.set()
        await self.read(stream, end, charged, words=at)
        self.charge(model, end, charged, words=at)
        if not back_first:
            await self.thaw()

    async def lost_after(self) -> None:
        """Redis does not answer when the call is settled, and others are made meanwhile."""
        await self.one()
        self.freeze()
        await self.one()
        await self.one()
        await self.thaw()

    async def restarted(self) -> None:
        await self.stop()
        await self.start()

    async def ended_alone(self) -> None:
        """The pod ends while Redis does not answer. The next one on its disk reports what it spent. A
        reserve that Redis knew stays.
        """
        stream, charged = await self.half_a_stream()
        self.agent._runtime.admission.store.pretend(
            Drill(id=1, kind=DrillKind.GONE, remaining_ms=600_000), asked=monotonic()
        )
        await eventually(lambda: self.agent._runtime.admission.health.mode is Mode.LOCAL)
        counted, before = self.counted(), self.in_ledger()
        await self.one()
        alone = {name: amount - before[name] for name, amount in self.in_ledger().items()}
        self.vendor.held.set()
        await self.read(stream, "stream", charged, words=WORDS)
        self.charge(charged.body["model"], "stream", charged, words=WORDS)
        await self.stop()
        assert self.counted() == counted
        self.off = {name: counted[name] + alone[name] - amount for name, amount in self.in_ledger().items()}
        await self.start()

    async def died(self) -> None:
        """Redis dies, and comes back empty. Calls are made meanwhile, and at once when it is back."""
        self.valkey.stop()
        await eventually(lambda: self.agent.mode is Mode.LOCAL)
        await self.one()
        await self.one()
        self.valkey.start()
        publish(self.limits, RULES, revision=1)
        await eventually(lambda: self.agent.mode is Mode.SHARED)
        await self.each()

    async def emptied(self) -> None:
        """Redis loses its data between two calls."""
        self.empty()
        await self.one()
        await self.each()

    async def emptied_during(self) -> None:
        """Redis loses its data in the middle of a stream, which ends when a pod has put back what it knew."""
        stream, charged = await self.half_a_stream()
        before = self.counted()
        self.empty()
        await self.each()
        await eventually(
            lambda: self.counted(), accept=lambda now: all(now[name] >= before[name] for name in BUDGETS)
        )
        self.vendor.held.set()
        await self.read(stream, "stream", charged, words=WORDS)
        self.charge(charged.body["model"], "stream", charged, words=WORDS)

    # Calls that count

    async def half_a_stream(self) -> tuple[Any, Charged]:
        """A stream that the pod reads later; the pod has looked at the budgets with its reserve."""
        model = self.random.choice([GPT, CLAUDE])
        self.vendor.held.clear()
        self.vendor.will(words=WORDS, holds_after=WORDS // 2)
        stream = await self.begin(model)
        charged = self.vendor.bill[-1]
        await self.quiet()
        return stream, charged

    def empty(self) -> None:
        self.limits.flushall()
        publish(self.limits, RULES, revision=1)

    async def each(self) -> None:
        """A call of each model: a pod puts back a budget some time after a call that spends it."""
        for model in self.clients:
            await self.call(model, "whole")

    def counted(self) -> dict[str, int]:
        found = {model: of_account(self.limits, model) for model in self.clients}
        return {**found, "acme": of_tenant(self.limits)}

    def in_ledger(self) -> dict[str, int]:
        now = self.now()
        return {**now, "acme": sum(now.values())}

    def known(self) -> dict[str, int]:
        """What the pod has seen spent of the budgets, by counter."""
        budgets = self.agent._runtime.admission.redis_fallback.budgets
        return {key.decode(): one.amount for key, one in budgets._kept.items() if one.mark}

    async def quiet(self) -> None:
        """Everything has been sent, and the pod has looked at it."""
        admission = self.agent._runtime.admission
        budgets = admission.redis_fallback.budgets

        def looked() -> bool:
            waiting = admission.settlements._count or admission.redis_fallback.limits.offline.unreported
            return not (waiting or budgets._due or budgets._round)

        await eventually(
            lambda: (looked(), sorted(self.known().values()), sorted(self.counted().values())),
            f"what a pod knows, and what Redis counts, after {self.story}",
            accept=lambda found: found[0] and found[1] == found[2],
        )

    async def agrees(self) -> None:
        """The budgets count what the ledger has, to the unit, and the pod knows it."""
        await eventually(
            lambda: {name: self.counted()[name] - amount for name, amount in self.in_ledger().items()},
            f"what budgets count more than the ledger, not {self.off}, after {self.story}",
            accept=lambda found: found == self.off,
        )
        await self.quiet()

    def now(self) -> dict[str, int]:
        """What the ledger has, when the pod has reported everything."""
        usage = self.agent.counters.usage
        for part in usage.next(leaving=True):
            usage.taken(part.number)
            for row in part.rows:
                self.ledger[row.model] += row.micro_usd
        return self.ledger


STORY = (
    World.one,
    World.one,
    World.one,
    World.together,
    World.lost_before,
    World.lost_during,
    World.lost_after,
    World.restarted,
    World.ended_alone,
    World.died,
    World.emptied,
    World.emptied_during,
)


@pytest.fixture
def forgetful(valkey: Valkey) -> Iterator[Valkey]:
    yield valkey
    if valkey.process is not None and valkey.process.poll() is None:
        valkey.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def world(valkey: Valkey, vendor: Vendor, folder: Path, seed: int) -> AsyncIterator[World]:
    with redis.Redis.from_url(valkey.url) as limits:
        publish(limits, RULES, revision=1)
        made = World(valkey, vendor, folder, Random(seed), limits)
        try:
            await made.start()
            # A loss at once would take what the pod has not looked at yet, as docs/budgets.md says.
            await made.agrees()
            yield made
        finally:
            if valkey.process is not None and valkey.process.poll() is None:
                valkey.process.send_signal(signal.SIGCONT)
            await made.stack.aclose()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, *[pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12)]])
async def test_the_sum_of_all_settlements_is_the_bill_of_the_vendor(
    forgetful: Valkey, vendor: Vendor, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Calls of both clients end in every way. Redis is lost before, during and after them, or its data.

    Pods restart, and decide alone. What cannot be known of a broken stream is bounded; what the budgets count
    is what the ledger has, to the unit, but for the losses that docs/budgets.md names.
    """
    for module, name, quick in QUICK:
        monkeypatch.setattr(module, name, quick)
    async with world(forgetful, vendor, tmp_path, seed) as story:
        # Each kind of step, and then as chance has it.
        each = list(dict.fromkeys(STORY))
        steps = [*each, *story.random.choices(STORY, k=STEPS - len(each))]
        story.random.shuffle(steps)
        for step in steps:
            story.story.append(step.__name__)
            await step(story)
            await story.agrees()
        for model, counted in story.now().items():
            assert abs(counted - story.bill[model]) <= story.unsure[model], (model, story.story)
        assert sum(story.bill.values()) > 5 * max(story.unsure.values())
