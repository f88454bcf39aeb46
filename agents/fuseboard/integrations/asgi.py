"""ASGI middleware: limits decide before the application gets the request.

::

    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=tenant_of)

The middleware answers refused requests: 429 for a spent quota, 403 for a suspended tenant, 503 when the
service itself lacks capacity; each with problem+json, ``RateLimit`` headers and ``Retry-After``. A
``Refused`` that escapes from the application becomes a 503 too.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_wait
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured, Refused
from fuseboard.integrations.problem import encoded, header_pairs, refusal
from fuseboard.subject import NOBODY, Subject

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("fuseboard.asgi")


def subject_of(scope: Scope) -> Subject:
    """Who asks, as every ASGI server knows it: the address of the peer, the method and the path.

    Behind a proxy the peer is the proxy, unless the server reads its headers (uvicorn's
    ``--proxy-headers``). The path is the requested one, not the template of the route.
    """
    client = scope.get("client")
    return Subject(ip=client[0] if client else "", endpoint=f"{scope['method']} {scope['path']}")


class FuseboardMiddleware:
    """Decides HTTP requests; WebSockets pass through.

    ``tenant`` returns the tenant of a request. An empty or invalid name is limited like an unknown
    tenant. ``None`` is a caller without a tenant: with a ``subject``, the limits of its address or key
    decide; without one, nothing does (health checks). ``subject`` says who asks, below the tenant, like
    ``subject_of``. ``cost`` and ``costs`` return what the request costs. What these functions raise is
    the application's error. If a request would be refused, it waits, provided that the refusal ends
    within ``wait_s`` seconds; it spends nothing meanwhile. The agent starts and stops with the lifespan
    of the application, unless it is running already.
    """

    def __init__(
        self,
        app: App,
        agent: Agent,
        tenant: Callable[[Scope], str | None],
        cost: Callable[[Scope], int] | None = None,
        subject: Callable[[Scope], Subject | None] | None = None,
        costs: Callable[[Scope], Mapping[str, int]] | None = None,
        legacy_headers: bool = False,
        wait_s: float | None = None,
    ) -> None:
        check_wait(wait_s)
        self._app = app
        self._agent = agent
        self._tenant = tenant
        self._cost = cost
        self._subject = subject
        self._costs = costs
        self._legacy = legacy_headers
        self._wait_s = wait_s
        #: Requests that passed because the agent could not decide.
        self.failed_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            decision = await self._decide(scope)
            if decision is None:
                await self._serve(scope, receive, send, [])
            elif not decision.allowed:
                await self._refuse(scope, send, decision)
            else:
                try:
                    extra = header_pairs(decision, legacy=self._legacy)
                    await self._serve(scope, receive, send, extra)
                finally:
                    self._agent.finish(decision)
        elif scope["type"] == "lifespan":
            await _Lifespan(self._app, self._agent).run(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, extra: list[tuple[bytes, bytes]]
    ) -> None:
        started = False

        def send_with_headers(message: Message) -> Awaitable[None]:
            nonlocal started
            if not started and message["type"] == "http.response.start":
                started = True
                if extra:
                    message = {**message, "headers": [*message.get("headers", ()), *extra]}
            return send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Refused as refused:
            if started:
                raise
            await self._refuse(scope, send, refused.decision)

    async def _decide(self, scope: Scope) -> Decision | None:
        tenant = self._tenant(scope)
        subject = self._subject(scope) if self._subject is not None else None
        if tenant is None and (subject is None or subject == NOBODY):
            return None
        cost = self._cost(scope) if self._cost is not None else 1
        costs = self._costs(scope) if self._costs is not None else None
        try:
            return await self._agent.admit_request(
                tenant, cost, costs=costs, subject=subject or NOBODY, wait_s=self._wait_s
            )
        except Misconfigured:
            # Not started, or an invalid cost. Refusing all requests would be worse than no limit.
            self.failed_open += 1
            if self.failed_open == 1:
                logger.exception("asgi.failed_open: the request passed; further ones are only counted")
            return None

    async def _refuse(self, scope: Scope, send: Send, decision: Decision) -> None:
        status, headers, body = refusal(decision, legacy=self._legacy)
        await send({"type": "http.response.start", "status": status, "headers": encoded(headers)})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class _Lifespan:
    """Runs the agent around the lifespan of the application, whether the application has one or not."""

    def __init__(self, app: App, agent: Agent) -> None:
        self._app, self._agent = app, agent
        self._ours = False
        self._received: list[str] = []
        self._answered = False

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_and_start() -> Message:
            message = await receive()
            self._received.append(message["type"])
            if message["type"] == "lifespan.startup" and not self._agent.running:
                self._ours = True
                await self._agent.start()
            return message

        async def stop_and_send(message: Message) -> None:
            self._answered = True
            if message["type"] != "lifespan.startup.complete":
                await self._stop()
            await send(message)

        try:
            await self._app(scope, receive_and_start, stop_and_send)
        except Exception:
            if self._answered:
                await self._stop()
                raise
            # The application does not support lifespan: by ASGI it raises, and is served all the same.
            await self._stand_in(receive_and_start, send)
        except BaseException:
            await self._stop()
            raise

    async def _stand_in(self, receive: Receive, send: Send) -> None:
        if not self._received:
            await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _stop(self) -> None:
        if self._ours:
            self._ours = False
            await self._agent.stop()
