"""A service that asks a model with LangChain: whole answers and streams, in coroutines and in threads."""

import asyncio
import os

import httpx2
from langchain_openai import ChatOpenAI

import fuseboard
from fuseboard import blocking
from fuseboard.llm.httpx2 import BlockingLlmTransport, LlmTransport

ASKED = "Who has made this client?"


async def ask(url: str) -> None:
    async with fuseboard.from_env() as agent:
        client = httpx2.AsyncClient(transport=LlmTransport(agent))
        model = ChatOpenAI(
            model="gpt-own", api_key="made-up", base_url=url, http_async_client=client, max_retries=0
        )
        answer = await model.ainvoke(ASKED)
        assert answer.content
        assert [part async for part in model.astream(ASKED)]


def ask_in_a_thread(url: str) -> None:
    with blocking.from_env() as agent:
        client = httpx2.Client(transport=BlockingLlmTransport(agent))
        model = ChatOpenAI(
            model="gpt-own", api_key="made-up", base_url=url, http_client=client, max_retries=0
        )
        assert model.invoke(ASKED).content
        assert list(model.stream(ASKED))


if __name__ == "__main__":
    asyncio.run(ask(os.environ["OPENAI_BASE_URL"]))
    ask_in_a_thread(os.environ["OPENAI_BASE_URL"])
