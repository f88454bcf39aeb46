"""ASGI middleware for the header ``Idempotency-Key``: a repeated request gets the first answer.

::

    app.add_middleware(IdempotencyMiddleware, agent=agent, caller=lambda scope: scope["user"].username)

``caller`` returns who asks, as text, so that no client reads the answer of another; ``None`` leaves a request
alone. Place it inside the middleware that identifies the caller. The other arguments are those of ``Rules``;
see docs/primitives.md. The application finds its run in ``scope["fuseboard.idempotency"]``, with ``fence``.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fuseboard.agent import Agent
from fuseboard.errors import StoreUnavailable
from fuseboard.integrations.asgi import App, Message, Receive, Scope, Send
from fuseboard.integrations.idempotency import (
    MAX_ANSWER,
    MAX_BODY,
    Answer,
    Rules,
    request_of,
    too_long,
)
from fuseboard.integrations.problem import encoded
from fuseboard.primitives.idempotency import Found, Request, Run

#: The place of the ``Run`` in the scope.
RUN = "fuseboard.idempotency"


class IdempotencyMiddleware:
    def __init__(self, app: App, agent: Agent, caller: Callable[[Scope], str | None], **rules: Any) -> None:
        self._app, self._agent, self._caller = app, agent, caller
        self._rules = Rules(**rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = key = None
        if scope["type"] == "http":
            key = self._rules.key(scope["method"], _values(scope, b"idempotency-key"))
            caller = self._caller(scope) if key is not None else None
        if caller is None or key is None:
            await self._app(scope, receive, send)
        elif isinstance(key, str):
            await self._guarded(scope, receive, send, caller, key)
        else:
            await _answer(send, key)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send, caller: str, key: str) -> None:
        try:
            body = await _body(receive, scope)
        except ConnectionAbortedError:
            return  # its request is not whole, so nothing may begin
        if body is None:
            await _answer(send, too_long())
            return
        request = request_of(
            caller=caller,
            method=scope["method"],
            path=scope["path"],
            key=key,
            query=scope.get("query_string", b""),
            content_type="".join(_values(scope, b"content-type")),
            body=body,
        )
        rules = self._rules
        try:
            found = await self._find(request)
        except StoreUnavailable as error:
            refusal = rules.unavailable(error)
            found = Found("run", 0)
            if refusal is not None:
                await _answer(send, refusal)
                return
        if found.word != "run":
            await _answer(send, self._rules.answer_of(found))
            return
        scope[RUN] = found.run
        again = _Again(body, receive)
        if found.run is None:
            await self._app(scope, again, send)
        else:
            await _Guarded(self._agent, rules, found.run, send).run(self._app, scope, again)

    async def _find(self, request: Request) -> Found:
        records = self._agent.idempotency
        finding = records.submit(request, self._rules.lease_s, self._rules.keep_s)
        try:
            return await asyncio.wrap_future(finding)
        except asyncio.CancelledError:
            if not finding.cancel() and finding.exception() is None:
                records.undo(finding.result())
            raise


class _Guarded:
    """One run: what the application sends is kept until it is whole."""

    def __init__(self, agent: Agent, rules: Rules, run: Run, send: Send) -> None:
        self._agent, self._rules, self._run, self._send = agent, rules, run, send
        self._status = 0
        self._headers: list[tuple[str, str]] = []
        self._body: bytes | None = b""
        self._ended = False

    async def run(self, app: App, scope: Scope, receive: Receive) -> None:
        try:
            await app(scope, receive, self._sent)
        except Exception:
            await self._end(None)
            raise
        except BaseException:
            # Cancelled: what the request did is unknown.
            self._agent.idempotency.thread.call(self._run.leave)
            raise
        await self._end(None)

    async def _sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [
                (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
                for name, value in message.get("headers", ())
            ]
        elif message["type"] == "http.response.body":
            part = message.get("body", b"")
            if self._body is not None:
                self._body = self._body + part if len(self._body) + len(part) <= MAX_ANSWER else None
            if not message.get("more_body"):
                # Before the client has the answer: it may ask again at once.
                await self._end(self._status)
        elif message["type"] in ("http.response.pathsend", "http.response.zerocopysend"):
            self._body = None
            if not message.get("more_body"):
                await self._end(self._status)
        await self._send(message)

    async def _end(self, status: int | None) -> None:
        """``None``: it failed, or ended without an answer."""
        if self._ended:
            return
        self._ended = True
        ending: Coroutine[Any, Any, object]
        if status is not None and self._rules.ends(status):
            ending = self._run.done(self._rules.kept(status, self._headers, self._body))
        else:
            ending = self._run.release()
        # Shielded: the end is known, whatever becomes of the connection of the client.
        await asyncio.shield(asyncio.wrap_future(self._agent.idempotency.thread.submit(ending)))


class _Again:
    """Gives the application the body that was read already."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


async def _body(receive: Receive, scope: Scope) -> bytes | None:
    """All of it; ``None`` when it is too long."""
    length = "".join(_values(scope, b"content-length"))
    if length.isdecimal() and int(length) > MAX_BODY:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionAbortedError("the client disconnected before its request was whole")
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


async def _answer(send: Send, answer: Answer) -> None:
    status, headers, body = answer
    await send({"type": "http.response.start", "status": status, "headers": encoded(headers)})
    await send({"type": "http.response.body", "body": body})


def _values(scope: Scope, name: bytes) -> list[str]:
    return [bytes(value).decode("latin-1") for key, value in scope.get("headers", ()) if key == name]
