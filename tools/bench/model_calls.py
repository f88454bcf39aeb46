"""What the counting of tokens costs a call to a language model: CPU of a call, an event, and a decision.

The vendor answers in the process, so that nothing but clients and agent is measured, with limits in a Valkey
of the run. Contenders take turns in short rounds, and figures are medians of pairs. Run it as
``python tools/bench/model_calls.py``; a number of rounds may follow.
"""

import asyncio
import json
import logging
import random
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from time import process_time

sys.path.insert(0, str(Path(__file__).parent))

import httpx2
import openai
import redis
from control_plane.stand import Bars, say
from msgspec.structs import replace
from side_by_side.shared_only import check_shared

from controlplane.embedded.valkey import Valkey
from fuseboard import Outcome
from fuseboard.contract.policy import MAX_STORE_WAIT_MS
from fuseboard.contract.words import MAX_LIMIT
from fuseboard.integrations.httpx2 import GuardedTransport
from fuseboard.llm.estimate import stepped
from fuseboard.llm.httpx2 import LlmTransport
from tests.agents.limit_kinds import window
from tests.llm.pods import RULES, pod

ROUNDS = 31
#: Calls, events and decisions of one round.
CALLS, EVENTS, TURNS = 20, 2_000, 20
#: Decisions at once, as a busy pod makes them.
TOGETHER = 100
#: Prompts of 10 KB, which all contenders encode.
PROMPT = [{"role": "user", "content": "word " * 2_000}]
URL = "http://vendor/v1/chat/completions"
#: Limits that refuse nothing, and no bulkhead: more calls run at once than it has slots.
LIMITS = tuple([window(MAX_LIMIT, name=measure, measure=measure) for measure in ("calls", "tokens")])
LLM = replace(RULES.dependencies[0], protection=None, vendor_limits=LIMITS, store_wait_ms=MAX_STORE_WAIT_MS)
UNBOUNDED = replace(RULES, dependencies=(LLM,))


def chunk(delta, **more):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": None}]
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        **more,
    }


USAGE = {"prompt_tokens": 2_500, "completion_tokens": 20, "total_tokens": 2_520}
WHOLE = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "word " * 20}}
    ],
    "usage": USAGE,
}
EVENT = b"data: " + json.dumps(chunk({"content": " word"})).encode() + b"\n\n"
LAST = b"data: " + json.dumps(chunk(None, usage=USAGE)).encode() + b"\n\ndata: [DONE]\n\n"


async def events():
    for _ in range(EVENTS):
        yield EVENT
    yield LAST


def answer(request):
    if b'"stream":true' in request.content:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=events())
    return httpx2.Response(200, json=WHOLE)


async def ms_each_call(transport):
    http = httpx2.AsyncClient(transport=transport)
    client = openai.AsyncOpenAI(
        api_key="made-up", base_url="http://vendor/v1", http_client=http, max_retries=0
    )
    began = process_time()
    for _ in range(CALLS):
        await client.chat.completions.create(model="m", messages=PROMPT, max_tokens=500)
    return (process_time() - began) / CALLS * 1e3


async def us_each_event(transport):
    body = json.dumps({"model": "m", "messages": PROMPT, "stream": True}, separators=(",", ":")).encode()
    async with httpx2.AsyncClient(transport=transport) as client:
        began = process_time()
        async with client.stream("POST", URL, content=body) as response:
            async for _ in response.aiter_raw():
                pass
        return (process_time() - began) / EVENTS * 1e6


async def us_each_decision(agent, costs):
    began = process_time()
    for _ in range(TURNS):
        calls = [agent.admit_call("llm", costs={"tokens": next(costs)}) for _ in range(TOGETHER)]
        for permit in await asyncio.gather(*calls):
            agent.report(permit, Outcome.OK)
    return (process_time() - began) / (TURNS * TOGETHER) * 1e6


def equal():
    while True:
        yield 1_526


def varied():
    # As a guarded client reserves: rounded up.
    chosen = random.Random(7)
    while True:
        yield stepped(chosen.randrange(300, 6_000))


async def pairs(rounds, one, other):
    """Figures of two contenders that take turns; the first round warms up."""
    return [(await one(), await other()) for _ in range(rounds + 1)][1:]


@asynccontextmanager
async def running():
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            with redis.Redis.from_url(server.url) as limits:
                async with pod(limits, server.url, UNBOUNDED) as agent:
                    yield agent
                    check_shared("model_calls", agent.counters.local_decisions)
        finally:
            server.stop()


async def main(rounds):
    logging.getLogger("fuseboard").setLevel(logging.ERROR)  # the calls without tokens are reported
    bars = Bars()
    async with running() as agent:

        def bare():
            return httpx2.MockTransport(answer)

        def plain():
            return GuardedTransport(agent, dependency="llm", transport=bare())

        def counting():
            return LlmTransport(agent, dependency="llm", transport=bare())

        calls = await pairs(rounds, lambda: ms_each_call(plain()), lambda: ms_each_call(counting()))
        streams = await pairs(rounds, lambda: us_each_event(plain()), lambda: us_each_event(counting()))
        unguarded = await pairs(rounds, lambda: us_each_event(bare()), lambda: us_each_event(counting()))
        same, other = equal(), varied()
        decisions = await pairs(
            rounds, lambda: us_each_decision(agent, same), lambda: us_each_decision(agent, other)
        )
    for what, unit, found in (("call", "ms", calls), ("event", "us", streams), ("decision", "us", decisions)):
        say(f"{what}: {median(a for a, _ in found):.2f} and {median(b for _, b in found):.2f} {unit} of CPU")
    bars.ratio_at_most("model_call_tokens_ms", median(b - a for a, b in calls), 0.4)
    bars.ratio_at_most("model_event_us", median(b - a for a, b in streams), 3.0)
    bars.figure(
        "model_event_unguarded_us", median(b - a for a, b in unguarded), "us more than without a guard"
    )
    bars.ratio_at_most("model_varied_costs_vs_equal", median(b / a for a, b in decisions), 2.2)
    return bars.status


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)))
