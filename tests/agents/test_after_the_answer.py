"""Work after a complete answer holds no slot of a concurrency limit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

import pytest

from fuseboard.contract.words import Algorithm, Reason
from fuseboard.decision import Charge, Decision, LimitStatus
from fuseboard.errors import Refused
from fuseboard.integrations import asgi, wsgi
from tests.agents.test_integrations_asgi import FakeAgent, tenant_of

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
HTTP = {"type": "http", "method": "GET", "path": "/", "headers": [(b"x-tenant", b"acme")]}
START = {"type": "http.response.start", "status": 200, "headers": []}
PART = {"type": "http.response.body", "body": b"a", "more_body": True}
END = {"type": "http.response.body", "body": b""}
HELD = Decision(
    allowed=True,
    tenant="acme",
    limits=(LimitStatus(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY),),
    charges=(Charge(domain="", demand=None, at_us=0, token="", local=True),),
)


class Connection:
    """The server: what was freed when each message was sent."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.sent: list[tuple[str, int]] = []

    async def send(self, message: Message) -> None:
        self.sent.append((message["type"], len(self.agent.finished)))


async def serve(app: Any, agent: FakeAgent) -> Connection:
    connection = Connection(agent)
    middleware = asgi.FuseboardMiddleware(app, agent, tenant_of)
    await middleware(dict(HTTP), None, connection.send)  # type: ignore[arg-type]
    return connection


@pytest.mark.parametrize(
    "messages",
    [
        [START, END],
        [START, PART, PART, END],
        [START, {"type": "http.response.pathsend", "path": "/x"}],
        [START, {"type": "http.response.zerocopysend", "file": 3}],
    ],
)
async def test_the_slot_is_free_after_the_last_message_and_not_before(messages: list[Message]):
    agent = FakeAgent(HELD)
    free_in_work: list[int] = []

    async def app(scope: Message, receive: object, send: Send) -> None:
        for message in messages:
            assert agent.finished == []
            await send(message)
        free_in_work.append(len(agent.finished))

    connection = await serve(app, agent)
    assert free_in_work == [1]
    assert agent.finished == [HELD]
    assert {held for _, held in connection.sent} == {0}


@pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
async def test_an_error_after_the_answer_is_raised_and_frees_nothing_twice(
    error: type[BaseException],
):
    agent = FakeAgent(HELD)

    async def app(scope: Message, receive: object, send: Send) -> None:
        await send(START)
        await send(END)
        raise error

    with pytest.raises(error):
        await serve(app, agent)
    assert agent.finished == [HELD]


async def test_a_refusal_after_the_answer_is_raised_because_nothing_can_answer_it():
    agent = FakeAgent(HELD)

    async def app(scope: Message, receive: object, send: Send) -> None:
        await send(START)
        await send(END)
        raise Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN))

    with pytest.raises(Refused):
        await serve(app, agent)
    assert agent.finished == [HELD]


async def test_a_client_that_is_gone_frees_the_slot_too():
    agent = FakeAgent(HELD)

    async def app(scope: Message, receive: object, send: Send) -> None:
        with suppress(OSError):
            await send(END)
        assert agent.finished == [HELD]

    async def gone(message: Message) -> None:
        raise OSError

    await asgi.FuseboardMiddleware(app, agent, tenant_of)(dict(HTTP), None, gone)  # type: ignore[arg-type]
    assert agent.finished == [HELD]


class TestWSGI:
    def test_the_slot_is_free_before_the_applications_close(self):
        agent = _Blocking()
        seen: list[int] = []

        class Body:
            def __iter__(self) -> Any:
                yield b"a"
                assert agent.finished == 0

            def close(self) -> None:
                seen.append(agent.finished)
                raise LookupError("work after the answer")

        def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            start("200 OK", [])
            return Body()

        middleware = wsgi.FuseboardMiddleware(app, agent, lambda environ: "acme")  # type: ignore[arg-type]
        body = middleware({"REQUEST_METHOD": "GET"}, lambda *line: lambda data: None)
        assert b"".join(body) == b"a"
        with pytest.raises(LookupError):
            body.close()  # type: ignore[attr-defined]
        assert (seen, agent.finished) == ([1], 1)


class _Blocking:
    """An agent of ``fuseboard.blocking`` that admits everything."""

    def __init__(self) -> None:
        self.finished = 0

    def enter_request(self, *asked: object) -> None:
        return None

    def admit_request(self, *asked: object, **more: object) -> Decision:
        return HELD

    def finish(self, decision: Decision) -> None:
        self.finished += 1
