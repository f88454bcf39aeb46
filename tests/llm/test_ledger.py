"""What each call to a model used goes into the ledger, once, however the call ends."""

import gc
import math
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from msgspec.structs import replace

import fuseboard
from fuseboard import Agent, blocking
from fuseboard.contract.models import Model, Price
from fuseboard.contract.usage import UsageRow
from tests.llm.pods import claude, gpt, held, pod, thread_pod
from tests.llm.test_bills import PATIENT
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: Any = [{"role": "user", "content": "x" * 400}]


def ledger(agent: Agent | blocking.Agent) -> list[UsageRow]:
    return [row for part in agent.counters.usage.next(leaving=True) for row in part.rows]


async def ask(client: Any, *, stream: bool = False, model: str = "m") -> Any:
    if hasattr(client, "messages"):
        return await client.messages.create(model=model, messages=ASKED, max_tokens=500, stream=stream)
    return await client.chat.completions.create(model=model, messages=ASKED, max_tokens=500, stream=stream)


async def read(stream: Any) -> None:
    async for _ in stream:
        """Read."""


@pytest.mark.parametrize("make", [gpt, claude])
async def test_whole_answers_are_entered_as_the_vendor_charges_them(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any
):
    async with pod(limits, redis_url, PATIENT) as agent, make(agent, vendor) as client:
        with fuseboard.tenant("acme"):
            await ask(client)
            await read(await ask(client, stream=True))
        await ask(client, model="n")
        await eventually(lambda: held(agent) == 0)
        one, two, other = vendor.bill
        assert set(ledger(agent)) == {
            UsageRow(
                "m",
                "llm",
                "acme",
                2,
                one.fresh + two.fresh,
                one.cached + two.cached,
                one.written + two.written,
                one.output + two.output,
                unpriced=2,
            ),
            UsageRow("n", "llm", "", 1, other.fresh, other.cached, other.written, other.output, unpriced=1),
        }


@pytest.mark.parametrize("make", [gpt, claude])
async def test_a_call_is_entered_under_the_name_of_its_model_at_its_price(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any
):
    price = Price(starts_at_s=0, input=3_000_000, cached=300_000, written=3_750_000, output=15_000_000)
    rules = replace(PATIENT, models=(Model(name="large", aliases=("m",), prices=(price,)),))
    async with pod(limits, redis_url, rules) as agent, make(agent, vendor) as client:
        await read(await ask(client, stream=True))
        await eventually(lambda: held(agent) == 0)
        (one,) = vendor.bill
        (row,) = ledger(agent)
        cost = 3 * one.fresh + 0.3 * one.cached + 3.75 * one.written + 15 * one.output
        assert (row.model, row.calls, row.unpriced) == ("large", 1, 0)
        assert row.micro_usd == math.ceil(cost)
        assert row.saved_micro_usd == 3 * one.input + 15 * one.output - row.micro_usd
        vendor.will(words=30, after=10, cuts=True)
        with pytest.raises(Exception):  # noqa: B017, PT011 - each client has its own
            await read(await ask(client, stream=True))
        await eventually(lambda: held(agent) == 0)
        (*_, row) = ledger(agent)
        assert row.micro_usd == row.wasted_micro_usd == row.estimated_micro_usd > 0


@pytest.mark.parametrize("make", [gpt, claude])
@pytest.mark.parametrize("end", ["left", "cut", "error event", "collected"])
async def test_a_stream_without_an_end_is_wasted_and_estimated(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any, end: str
):
    async with pod(limits, redis_url, PATIENT) as agent, make(agent, vendor) as client:
        vendor.will(words=200) if end in ("left", "collected") else vendor.will(
            words=30, after=10, cuts=end == "cut"
        )
        stream = await ask(client, stream=True)
        if end in ("cut", "error event"):
            with pytest.raises(Exception):  # noqa: B017, PT011 - each client has its own
                await read(stream)
        else:
            async for _ in stream:
                break
            if end == "left":
                await stream.close()
            del stream, _

        def is_free() -> bool:
            # The stream of a client is a part of a cycle: only the collector of cycles drops it.
            gc.collect()
            return held(agent) == 0

        await eventually(is_free)
        (row,) = await eventually(lambda: ledger(agent))
        assert (row.calls, row.wasted, row.estimated) == (1, 1, 1)
        assert row.fresh + row.cached + row.written > 0
        assert row.output < 60, "what came, and not the whole answer"


def test_a_client_for_threads_is_entered_too(
    limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor
):
    with thread_pod(limits, redis_url, tmp_path, PATIENT) as agent:
        plain = openai.OpenAI(api_key="made-up", base_url=f"{vendor.url}/v1", max_retries=0)
        with fuseboard.guard(plain, agent, "llm") as client:
            client.chat.completions.create(model="m", messages=ASKED)
        (row,) = ledger(agent)
    (one,) = vendor.bill
    assert (row.model, row.calls, row.output) == ("m", 1, one.output)


async def test_an_answer_without_usage_is_estimated(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url, PATIENT) as agent, gpt(agent, vendor) as client:
        vendor.will(2, reports_usage=False)
        await ask(client)
        await read(await ask(client, stream=True))
        await eventually(lambda: held(agent) == 0)
        (row,) = ledger(agent)
        assert (row.calls, row.wasted, row.estimated) == (2, 0, 2)
        assert row.fresh > 0
        assert row.output > 0


async def test_a_call_that_cost_nothing_is_not_entered(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url, PATIENT) as agent, gpt(agent, vendor) as client:
        for status in (400, 500):
            vendor.will(status=status)
            with pytest.raises(openai.APIStatusError):
                await ask(client)
        await client.models.list()
        # A redirect, to where nobody is asked for a model.
        vendor.will(status=303, headers={"Location": f"{vendor.url}/v1/files"})
        await client.with_raw_response.chat.completions.create(model="m", messages=ASKED)
        assert ledger(agent) == []
        # A proxy gave up: the vendor may have done the work.
        vendor.will(status=504)
        with pytest.raises(openai.APIStatusError):
            await ask(client)
        (row,) = ledger(agent)
        assert (row.calls, row.wasted, row.estimated) == (1, 1, 1)
        # And then nobody may call the vendor for a moment.
        vendor.will(status=429)
        for _ in range(2):
            with pytest.raises(openai.APIError):
                await ask(client)
        (row,) = ledger(agent)
        assert row.calls == 1
