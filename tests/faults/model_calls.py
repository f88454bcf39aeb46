"""Calls to language models in a pod, and what came of them."""

import asyncio
from itertools import count
from typing import Any

import fuseboard

#: What each call asks for.
ASKED = [{"role": "user", "content": "How long does a letter take to reach its reader?"}]
#: The longest answer that a call asks for.
MOST_WORDS = 200
#: Longer than any fault of a row.
_PATIENCE_S = 120.0


class ModelCalls:
    """Commands of a pod."""

    COMMANDS = frozenset({"ask-model", "model-answers", "usage-left"})

    def __init__(self, agent: fuseboard.Agent) -> None:
        self._agent = agent
        self._client: Any = None
        self._numbers = count(1)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        #: Number of a call -> the parts of its answer, and its error or the reason of its refusal.
        self._answers: dict[int, dict[str, Any]] = {}

    async def do(self, what: str, **arguments: Any) -> object:
        answer: object = await getattr(self, what.replace("-", "_"))(**arguments)
        return answer

    async def ask_model(self, url: str, model: str, stream: bool = True) -> int:
        """Begin a call; return its number."""
        # Pods of other rows start without them.
        import httpx

        from fuseboard.llm.httpx import LlmTransport

        if self._client is None:
            # Each call has a connection: that of a call that broke off must not fail the next one.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._client = httpx.AsyncClient(
                transport=LlmTransport(self._agent, transport=httpx.AsyncHTTPTransport(limits=limits)),
                timeout=_PATIENCE_S,
            )
        number = next(self._numbers)
        self._answers[number] = {"parts": 0, "status": 0, "ended": False, "error": ""}
        body = {"model": model, "messages": ASKED, "stream": stream, "max_completion_tokens": MOST_WORDS}
        self._tasks[number] = asyncio.create_task(self._ask(self._client, number, url, body))
        return number

    async def _ask(self, client: Any, number: int, url: str, body: dict[str, Any]) -> None:
        answer = self._answers[number]
        try:
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                answer["status"] = response.status_code
                async for line in response.aiter_lines():
                    answer["parts"] += '"content": " word"' in line
        except fuseboard.Refused as refused:
            answer["error"] = str(refused.decision.reason)
        except Exception as error:
            answer["error"] = type(error).__name__
        answer["ended"] = True

    async def model_answers(self) -> dict[int, dict[str, Any]]:
        return self._answers

    async def usage_left(self) -> int:
        """Rows of usage that Postgres has not confirmed."""
        return self._agent.counters.usage.left

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._client is not None:
            await self._client.aclose()
