"""The assistant of the shop: a service that asks language models, with the clients of OpenAI and Anthropic.

It works through jobs for tenants. ``fuseboard.guard`` is all that it needs for limits, budgets and costs.
``POST /ask``, ``POST /chain`` and ``PUT /jobs`` are for the checkpoints.
Run: ``python -m tools.demo.assistant --port N``, with ``VENDOR_URL`` and the agent's ``FUSEBOARD_*``
variables set.
"""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anthropic
import msgspec
import openai
from fastapi import FastAPI, Request, Response

import fuseboard
from fuseboard import Alternative, Cached, Default
from tools.demo.assistant_api import Asked, Got, Work
from tools.demo.model_scenario import CALLS_PER_S, CLAUDES, GPT, JOBS, OPENAI, SONNET, Job
from tools.demo.serving import serve

#: Calls under way; jobs that are due meanwhile are left out.
MAX_AT_ONCE = 60
#: For how long an earlier answer may be used instead.
FRESH_S = 5.0
SORRY = "Please try again later."
_TICK_S = 0.05


class Assistant:
    def __init__(self, agent: fuseboard.Agent, vendor_url: str) -> None:
        self.agent = agent
        # Two lines, as in any service: the clients reserve, wait, settle and count from now on.
        self.gpt = fuseboard.guard(
            openai.AsyncOpenAI(api_key="of-the-demo", base_url=f"{vendor_url}/v1"), agent
        )
        self.claude = fuseboard.guard(
            anthropic.AsyncAnthropic(api_key="of-the-demo", base_url=vendor_url), agent
        )
        self.work = Work(per_s=CALLS_PER_S)
        #: How the jobs ended: ``ok``, or the reason of the refusal, or the class of the error.
        self.ended: Counter[str] = Counter()
        self.last_good: tuple[str, float] | None = None

    async def ask(self, asked: Asked) -> Got:
        """Never raises: a refusal and an error are answers of a checkpoint."""
        got = Got()
        try:
            with fuseboard.tenant(asked.tenant):
                await (self._ask_claude if asked.model in CLAUDES else self._ask_gpt)(asked, got)
        except fuseboard.Refused as refused:
            got.refused_because, got.rule = str(refused.decision.reason), refused.decision.rule
        except (openai.APIError, anthropic.APIError) as error:
            got.error = type(error).__name__
        return got

    async def _ask_gpt(self, asked: Asked, got: Got) -> None:
        given: Any = {
            "model": asked.model,
            "max_completion_tokens": asked.max_tokens,
            "messages": [{"role": "user", "content": asked.text}],
        }
        if not asked.stream:
            answer = await self.gpt.chat.completions.create(**given)
            got.text = answer.choices[0].message.content or ""
            return
        stream: Any = await self.gpt.chat.completions.create(**given, stream=True)
        async with stream:
            async for part in stream:
                got.text += part.choices[0].delta.content or ""
                got.parts += 1
                if got.parts == asked.leave_after:
                    break

    async def _ask_claude(self, asked: Asked, got: Got) -> None:
        given: Any = {
            "model": asked.model,
            "max_tokens": asked.max_tokens,
            "messages": [{"role": "user", "content": asked.text}],
        }
        if not asked.stream:
            answer = await self.claude.messages.create(**given)
            got.text = answer.content[0].text
            return
        async with self.claude.messages.stream(**given) as stream:
            async for text in stream.text_stream:
                got.text += text
                got.parts += 1
                if got.parts == asked.leave_after:
                    break

    async def answer_ticket(self, asked: Asked) -> fuseboard.Answer[str]:
        """Claude answers if GPT does not; then the last answer, while it is young; then an apology."""

        async def ask(model: str) -> str:
            got = Got()
            with fuseboard.tenant(asked.tenant):
                await (self._ask_claude if model in CLAUDES else self._ask_gpt)(
                    msgspec.structs.replace(asked, model=model), got
                )
            self.last_good = got.text, time.monotonic()
            return got.text

        steps: list[Alternative | Cached | Default] = [
            Alternative(SONNET, call=lambda: ask(SONNET)),
            Cached(self._stored, max_age_s=FRESH_S),
            Default(SORRY),
        ]
        return await self.agent.fallback(OPENAI, steps).run(lambda: ask(GPT))

    def _stored(self) -> tuple[str, float] | None:
        return None if self.last_good is None else (self.last_good[0], time.monotonic() - self.last_good[1])

    async def do_jobs(self) -> None:
        """Begin jobs until cancelled, as many as are due."""
        last, under_way = time.monotonic(), set[asyncio.Task[None]]()
        due = 0.0
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(_TICK_S)
                now = time.monotonic()
                # After a pause of this process, jobs that were due are not made up for.
                due += self.work.per_s * min(now - last, 0.5)
                last = now
                for _ in range(int(due)):
                    due -= 1
                    if len(under_way) < MAX_AT_ONCE:
                        task = tasks.create_task(self._do(self._next_job()))
                        under_way.add(task)
                        task.add_done_callback(under_way.discard)

    def _next_job(self) -> Job:
        jobs = [job for job in JOBS if self.work.model in ("", job.model)]
        return random.choices(jobs, [job.weight for job in jobs])[0]

    async def _do(self, job: Job) -> None:
        (tenant,) = random.choices(list(job.tenants), list(job.tenants.values()))
        text = f"{job.wish} " + "word " * (job.letters * random.randint(50, 150) // 500)
        got = await self.ask(
            Asked(model=job.model, tenant=tenant, text=text, max_tokens=job.max_tokens, stream=job.streams)
        )
        self.ended[got.refused_because or got.error or "ok"] += 1


def application(vendor_url: str) -> FastAPI:
    agent = fuseboard.from_env()
    assistant = Assistant(agent, vendor_url)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(agent)
            for client in (assistant.gpt, assistant.claude):
                await stack.enter_async_context(client)
            jobs = asyncio.create_task(assistant.do_jobs())
            yield
            jobs.cancel()
            await asyncio.wait({jobs})

    app = FastAPI(lifespan=running, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/figures")
    async def figures() -> dict[str, Any]:
        """How the jobs ended, and what a checkpoint waits for."""
        return {
            "ended": assistant.ended,
            "mode": agent.mode,
            "revision": agent.configuration.snapshot.head.revision,
            # Rows of usage that Postgres has not confirmed.
            "unconfirmed": agent.counters.usage.left,
            # Decisions that did not wait for Redis.
            "local": agent.counters.local_decisions,
        }

    @app.post("/ask")
    async def ask(request: Request) -> Response:
        got = await assistant.ask(msgspec.json.decode(await request.body(), type=Asked))
        return Response(msgspec.json.encode(got), media_type="application/json")

    @app.post("/chain")
    async def chain(request: Request) -> dict[str, Any]:
        found = await assistant.answer_ticket(msgspec.json.decode(await request.body(), type=Asked))
        return {
            "value": found.value,
            "source": found.source,
            "reason": found.reason,
            "is_fallback": found.is_fallback,
            "is_cached": found.is_cached,
            "is_degraded": found.is_degraded,
            "cost": found.cost,
        }

    @app.put("/jobs")
    async def jobs(request: Request) -> dict[str, float]:
        assistant.work = msgspec.json.decode(await request.body(), type=Work)
        assistant.ended.clear()
        return {"per_s": assistant.work.per_s}

    return app


if __name__ == "__main__":
    serve(lambda _: application(os.environ["VENDOR_URL"]))
