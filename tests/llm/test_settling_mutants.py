"""Bugs in what a call to a model reserves, settles and enters into the ledger: examples notice each."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from httpx2 import Headers

import fuseboard
from fuseboard import Agent, Permit
from fuseboard.calling.current_chain import noted_in
from fuseboard.contract.models import Price
from fuseboard.contract.usage import UsageRow
from fuseboard.llm import model_call, transport
from fuseboard.llm.estimate import estimates_of, stepped
from fuseboard.llm.usage import MEASURES, SETTLED
from tests.agents.mutating import Mutant, mutated
from tests.llm.money import CLAUDE, GPT, NEVER_OPENS, charge, priced
from tests.llm.pods import billed, claude, gpt, limits_of, pod_alone
from tests.llm.vendor import Vendor
from tests.waiting import eventually
from tools.demo.model_formats import SORRY

PRICE = Price(starts_at_s=0, input=3_000_000, cached=1_000_000, written=4_000_000, output=15_000_000)
PRICES = {GPT: PRICE, CLAUDE: PRICE}
RULES = priced(prices=PRICES, limits=limits_of(*SETTLED), breaker=NEVER_OPENS)
ASKED: list[Any] = [{"role": "user", "content": "Who notices that this is not settled? " * 7}]
MOST = 500
FAILED = (openai.APIError, anthropic.APIError, httpx2.TransportError)


class Caller:
    """A client of a pod that is alone, where everything is settled when a call has ended."""

    def __init__(self, agent: Agent, client: Any, vendor: Vendor, model: str) -> None:
        self.agent, self.client, self.vendor, self.model = agent, client, vendor, model
        self.permits: list[Permit] = []
        #: Words of all streams.
        self.came = 0

    async def begin(self, *, stream: bool = True, model: str = "") -> Any:
        ways = self.client.chat.completions if self.model == GPT else self.client.messages
        with noted_in(self.permits), fuseboard.tenant("acme"):
            return await ways.create(
                model=model or self.model, messages=ASKED, max_tokens=MOST, stream=stream
            )

    async def read(self, stream: Any, *, words: int = 1_000_000, last: str = "") -> None:
        """Until so many words have come, or an event of this type; else all of it."""
        until = self.came + words
        async for part in stream:
            self.came += " word" in str(part)
            if self.came == until or (last and part.type == last):
                return

    async def fails(self, *, stream: bool = True) -> None:
        try:
            answer = await self.begin(stream=stream)
            if stream:
                await self.read(answer)
        except FAILED:
            return
        raise AssertionError("the vendor was to fail")

    @property
    def cost(self) -> dict[str, int]:
        """What the last call was charged."""
        return dict(self.permits[-1].cost())

    def rows(self) -> list[UsageRow]:
        """What has come into the ledger since the last look."""
        usage = self.agent.counters.usage
        found = [row for part in usage.next(leaving=True) for row in part.rows]
        for part in usage.next(leaving=True):
            usage.taken(part.number)
        return found

    @property
    def learned(self) -> Any:
        path = "/chat/completions" if self.model == GPT else "/v1/messages"
        (found,) = [
            learned
            for (_, endpoint, model), learned in estimates_of(self.agent)._known.items()
            if model == self.model and endpoint.endswith(path.rpartition("/")[2])
        ]
        return found

    def expect_bill(self) -> None:
        """The last call was charged what the vendor charges, and the ledger has it."""
        charged = self.vendor.bill[-1]
        bill = billed(charged, counts_cached=self.model == GPT)
        cost, money = self.cost, charge(charged, prices=PRICES)
        assert {measure: cost[measure] for measure in MEASURES} == {name: bill[name] for name in MEASURES}
        assert cost["micro_usd"] == money
        uncached = -(-(charged.input * PRICE.input + charged.output * PRICE.output) // 1_000_000)
        assert self.rows() == [
            UsageRow(
                self.model,
                {GPT: "gpt", CLAUDE: "claude"}[self.model],
                "acme",
                1,
                charged.fresh,
                charged.cached,
                charged.written,
                charged.output,
                micro_usd=money,
                saved_micro_usd=uncached - money,
            )
        ]

    def expect_part(self, words: int, *, wasted: bool = True) -> None:
        """The last call is charged for its input and these words, which the ledger calls estimated."""
        charged, cost = self.vendor.bill[-1], self.cost
        bill = billed(charged, counts_cached=self.model == GPT)
        assert abs(cost["output_tokens"] - words) <= 1
        assert abs(cost["input_tokens"] - bill["input_tokens"]) <= (
            0.15 * bill["input_tokens"] if self.model == GPT else 0
        )
        assert cost["tokens"] == cost["input_tokens"] + cost["output_tokens"]
        (row,) = self.rows()
        assert (row.calls, row.output, row.unpriced) == (1, cost["output_tokens"], 0)
        assert (row.wasted, row.estimated) == (int(wasted), 1)
        assert row.micro_usd == row.estimated_micro_usd == cost["micro_usd"] > 0
        assert row.wasted_micro_usd == row.micro_usd * wasted
        # A row has the parts of the input that the vendor names.
        assert row.fresh + row.cached + row.written >= bill["input_tokens"] * 0.85

    def expect_reserve(self, reserve: dict[str, int]) -> None:
        """The last call keeps its reserve, and the ledger has an estimate of it."""
        assert self.cost == reserve
        (row,) = self.rows()
        assert (row.calls, row.estimated) == (1, 1)
        assert row.fresh > 0
        assert row.output > 0

    def expect_nothing(self) -> None:
        assert set(self.cost.values()) == {0}
        assert self.rows() == []


@asynccontextmanager
async def caller(folder: Path, vendor: Vendor, model: str) -> AsyncIterator[Caller]:
    make: Any = gpt if model == GPT else claude
    async with pod_alone(folder, RULES) as agent, make(agent, vendor, "") as client:
        yield Caller(agent, client, vendor, model)


async def reserves_and_learns(one: Caller) -> None:
    vendor = one.vendor
    vendor.held.clear()
    vendor.will(words=100, holds_after=50)
    stream = await one.begin()
    # Nothing is learned: 3 letters a token, and the whole output that is allowed.
    reserve = one.cost
    letters = len(str(ASKED))
    assert reserve["output_tokens"] == stepped(0, MOST)
    assert letters / 3 < reserve["input_tokens"] == reserve["fresh_tokens"] < letters
    assert reserve["input_tokens"] + MOST <= reserve["tokens"] <= 1.3 * (reserve["input_tokens"] + MOST)
    assert reserve["cached_tokens"] == reserve["written_tokens"] == 1
    least = 3 * reserve["input_tokens"] / 1.25 + 15 * MOST
    assert least <= reserve["micro_usd"] <= 1.6 * least
    vendor.held.set()
    await one.read(stream)
    one.expect_bill()
    counted = billed(vendor.bill[-1], counts_cached=one.model == GPT)["input_tokens"]
    assert abs(one.learned.input_of(one_letters(one)) - counted) <= 1
    assert (one.learned.answers, one.learned.mean) == (1, 100)


def one_letters(one: Caller) -> int:
    """Letters of the body of the last request, as its client writes it."""
    return int(Headers(one.vendor.bill[-1].headers)["content-length"]) - added(one)


def added(one: Caller) -> int:
    """Letters that the guard has added."""
    return len(',"stream_options":{"include_usage":true}') if one.model == GPT else 0


async def whole_answers(one: Caller) -> None:
    for words, stream in ((60, False), (80, True), (3, True)):
        one.vendor.will(words=words)
        answer = await one.begin(stream=stream)
        if stream:
            await one.read(answer)
        one.expect_bill()


async def streams_that_end_early(one: Caller) -> None:
    vendor, answers = one.vendor, one.learned.answers
    for ends in ("left", "canceled"):
        vendor.held.clear()
        vendor.will(words=40, holds_after=3)
        stream = await one.begin()
        if ends == "left":
            await one.read(stream, words=3)
            await stream.close()
        else:
            before = one.came
            reading = asyncio.create_task(one.read(stream))
            await eventually(lambda before=before: one.came == before + 3)
            reading.cancel()
            await asyncio.wait([reading])
        vendor.held.set()
        one.expect_part(3)
    for cuts in (True, False):
        vendor.will(words=40, after=7, cuts=cuts, error=SORRY)
        await one.fails()
        one.expect_part(7)
    assert one.learned.answers == answers, "a part of an answer teaches nothing"


async def a_stream_that_is_forgotten(one: Caller) -> None:
    one.vendor.held.clear()
    one.vendor.will(words=40, holds_after=3)
    stream = await one.begin()
    await one.read(stream, words=3)
    del stream
    await eventually(lambda: gc.collect() >= 0 and one.permits[-1].reported)
    one.vendor.held.set()
    one.expect_part(3)


async def a_reader_who_leaves_after_the_usage(one: Caller) -> None:
    if one.model == GPT:
        return  # the usage comes in the last event
    one.vendor.will(words=40)
    stream = await one.begin()
    await one.read(stream, last="message_delta")
    await stream.close()
    one.expect_bill()


async def answers_without_usage(one: Caller) -> None:
    if one.model != GPT:
        return
    one.vendor.will(words=40, reports_usage=False)
    stream = await one.begin()
    await one.read(stream)
    one.expect_part(40, wasted=False)
    reserve = await reserve_of(one)
    one.vendor.will(words=40, reports_usage=False)
    await one.begin(stream=False)
    one.expect_reserve(reserve)


async def reserve_of(one: Caller) -> dict[str, int]:
    """What a call that is not streamed reserves: that of a call whose vendor may have done the work."""
    one.vendor.will(status=504)
    await one.fails(stream=False)
    reserve = one.cost
    assert min(reserve.values()) == 1 < reserve["output_tokens"]
    one.expect_reserve(reserve)
    return reserve


async def failures(one: Caller) -> None:
    for status in (400, 500):
        one.vendor.will(status=status)
        await one.fails(stream=status == 400)
        one.expect_nothing()
    await reserve_of(one)
    one.vendor.will(status=307, headers={"Location": "http://127.0.0.1:1/v1/nowhere"})
    await one.fails()
    assert len(one.permits) >= 2
    # The redirect, and the request that could not be sent.
    for permit in one.permits[-2:]:
        assert set(permit.cost().values()) <= {0}
    assert one.rows() == []


async def calls_that_are_cancelled_before_an_answer(one: Caller) -> None:
    one.vendor.answers.clear()
    before = one.vendor.requests
    calling = asyncio.create_task(one.begin())
    await eventually(lambda: one.vendor.requests > before)
    calling.cancel()
    await asyncio.wait([calling])
    one.vendor.answers.set()
    one.expect_reserve(one.cost)
    assert one.cost["output_tokens"] > 1


async def models_without_a_price(one: Caller) -> None:
    one.vendor.will(words=9)
    await one.begin(stream=False, model="unknown")
    (row,) = one.rows()
    assert (row.model, row.calls, row.unpriced, row.micro_usd, row.output) == ("unknown", 1, 1, 0, 9)


EXAMPLES = (
    reserves_and_learns,
    whole_answers,
    streams_that_end_early,
    a_stream_that_is_forgotten,
    a_reader_who_leaves_after_the_usage,
    answers_without_usage,
    failures,
    calls_that_are_cancelled_before_an_answer,
    models_without_a_price,
)


async def run_examples(folder: Path, vendor: Vendor) -> None:
    """Raises if an example is not as it must be."""
    for model in (GPT, CLAUDE):
        async with caller(folder, vendor, model) as one:
            for example in EXAMPLES:
                await example(one)


async def test_the_examples_hold(tmp_path: Path, vendor: Vendor):
    """Or every mutant would be noticed for free."""
    await run_examples(tmp_path, vendor)


SETTLING = [
    Mutant(
        "tokens are not settled",
        "        for measure in permit.estimated.intersection(MEASURES):",
        "        for measure in ():",
    ),
    Mutant(
        "money is not settled",
        "if self.price is not None and MICRO_USD in permit.estimated:",
        "if False:",
    ),
    Mutant(
        "what came of an output is free",
        "usage.output = max(usage.output, learned.output_of(usage.letters))",
        "pass",
    ),
    Mutant(
        "an input that is not named is free",
        "            usage.fresh = learned.input_of(self.letters)\n",
        "            pass\n",
    ),
    Mutant(
        "every vendor counts what it read from its cache",
        "usage.amount(measure, counts_cached=dialect.counts_cached)",
        "usage.amount(measure, counts_cached=True)",
    ),
    Mutant(
        "no vendor counts what it read from its cache",
        "usage.amount(measure, counts_cached=dialect.counts_cached)",
        "usage.amount(measure, counts_cached=False)",
    ),
    Mutant(
        "inputs are learned with what nobody counts",
        'counted = usage.amount("input_tokens", counts_cached=dialect.counts_cached)',
        'counted = usage.amount("input_tokens", counts_cached=True)',
    ),
    Mutant("nothing is learned", "            learned.add(self.letters, counted, usage)\n", ""),
    Mutant(
        "parts of answers are learned",
        "        if usage.has_input and usage.has_output:\n            counted",
        "        if True:\n            counted",
    ),
    Mutant(
        "no answer is estimated",
        "estimated = not (usage.has_input and usage.has_output)",
        "estimated = False",
    ),
    Mutant("an answer is settled twice", "        if self._settled:\n            return\n", ""),
    Mutant(
        "the end settles nothing",
        "        self._settle()\n        super().ended()",
        "        super().ended()",
    ),
    Mutant(
        "a forgotten stream keeps its reserve",
        "self._agent.soon(lambda: call.settle(permit, usage, wasted=not usage.has_output, shown=shown))",
        "pass",
    ),
    Mutant(
        "nothing is wasted",
        "wasted = self._events is not None and not (self._ended or self._usage.has_output)",
        "wasted = False",
    ),
    Mutant(
        "who leaves after the usage wastes it",
        "not (self._ended or self._usage.has_output)",
        "not self._ended",
    ),
    Mutant(
        "an answer without usage is not in the ledger",
        "            self._call.keep_estimate(wasted=not self._ended)\n",
        "            pass\n",
    ),
    Mutant("what was not answered is charged", "        permit.settle(measure, 0)\n", "        pass\n"),
    Mutant("no output is reserved", '"output_tokens": (0, guessed),', '"output_tokens": (0, 0),'),
    Mutant("tokens are reserved without the output", '"tokens": (known, guessed),', '"tokens": (known, 0),'),
    Mutant("no input is reserved", '"input_tokens": (known, 0),', '"input_tokens": (0, 0),'),
    Mutant(
        "money is reserved for the input alone",
        "(sure, micro_usd(self.price, fresh=known, output=guessed) - sure)",
        "(sure, 0)",
    ),
    Mutant("the ledger does not know the tenant", 'self.options.get("tenant", "")', '""'),
    Mutant("what is wasted costs nothing", "wasted_micro_usd=cost * wasted", "wasted_micro_usd=0"),
    Mutant(
        "what is estimated costs nothing", "estimated_micro_usd=cost * estimated", "estimated_micro_usd=0"
    ),
    Mutant("every model has a price", "unpriced=usage.calls * (price is None)", "unpriced=0"),
    Mutant("caching saves nothing", "fresh=usage.input, output=usage.output) - cost", "fresh=0) * 0"),
    Mutant(
        "an estimate has no output",
        "output=learned.next_output(self.asked.most))",
        "output=0)",
    ),
    Mutant(
        "no event is read",
        "            return dialect.read_event(data_of(event), self._usage)",
        "            return False",
    ),
]
#: Names in the module of the transport, and what does the work wrongly.
SENDING: dict[str, tuple[str, Any]] = {
    "what was not sent is charged": ("settle_unanswered", lambda permit: None),
    "what may be charged is not in the ledger": ("MAY_BE_CHARGED", frozenset()),
    "what has no answer is not in the ledger": ("_keep_estimate", lambda request: None),
}


async def noticed(folder: Path, vendor: Vendor) -> bool:
    try:
        await run_examples(folder, vendor)
    except Exception:
        return True
    return False


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", SETTLING, ids=lambda mutant: mutant.name)
async def test_every_mutant_of_settling_is_noticed(
    tmp_path: Path, vendor: Vendor, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
):
    twin = mutated(model_call, mutant)
    for name in ("ModelBody", "ModelCall", "settle_unanswered"):
        monkeypatch.setattr(transport, name, getattr(twin, name))
    assert await noticed(tmp_path, vendor)


@pytest.mark.mutants
@pytest.mark.parametrize("bug", SENDING)
async def test_every_mutant_of_sending_is_noticed(
    tmp_path: Path, vendor: Vendor, bug: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transport, *SENDING[bug])
    assert await noticed(tmp_path, vendor)
