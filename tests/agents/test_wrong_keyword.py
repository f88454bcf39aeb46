"""``with`` where ``async with`` is meant, and the reverse: the error says which to use."""

from collections.abc import Iterator

import pytest

import fuseboard
from fuseboard import Misconfigured, blocking
from fuseboard.settings import AgentSettings
from fuseboard.testing import FakeAgent

OFF = AgentSettings(redis_url="off")


@pytest.fixture
def worker() -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=OFF) as worker:
        yield worker


@pytest.mark.parametrize("agent", [fuseboard.Agent(settings=OFF), FakeAgent()], ids=["real", "fake"])
@pytest.mark.parametrize(("method", "name"), [("call", "payments-api"), ("request", "acme")])
def test_with_on_an_agent_of_an_event_loop(agent: fuseboard.Agent, method: str, name: str):
    with pytest.raises(Misconfigured, match="use 'async with'"), getattr(agent, method)(name):
        pytest.fail("the block ran")


@pytest.mark.parametrize(("method", "name"), [("acall", "payments-api"), ("arequest", "acme")])
def test_with_on_the_blocks_of_a_blocking_agent_for_coroutines(
    worker: blocking.Agent, method: str, name: str
):
    with pytest.raises(Misconfigured, match="use 'async with'"), getattr(worker, method)(name):
        pytest.fail("the block ran")


@pytest.mark.parametrize(("method", "name"), [("call", "payments-api"), ("request", "acme")])
async def test_async_with_on_a_blocking_agent(worker: blocking.Agent, method: str, name: str):
    with pytest.raises(Misconfigured, match="use 'with', or acall and arequest"):
        async with getattr(worker, method)(name):
            pytest.fail("the block ran")


def test_a_block_is_still_a_decorator(worker: blocking.Agent):
    calls = []

    @worker.request("acme")
    def serve(number: int) -> None:
        calls.append(number)

    serve(1)
    serve(2)
    assert calls == [1, 2]
