"""ASGI middleware: limits decide before the application gets the request.

::

    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=tenant_of)

The middleware answers refused requests: 429 for a spent quota, 403 for a suspended tenant, 503 when the
service itself lacks capacity; each with problem+json, ``RateLimit`` headers and ``Retry-After``. It
also answers a ``Refused`` that escapes from the application, alone or inside an error of a vendor's client.
When the pod is overloaded, requests of the lowest tiers are shed before any limit is checked. Three small
applications describe the pod::

    app.add_route("/readyz", readiness(agent))        # 503 while the pod should get no new requests
    app.add_route("/resilience", resilience(agent))   # what protects it, as JSON; for operators only
    app.add_route("/metrics", metrics(agent))         # its figures, for Prometheus
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_wait
from fuseboard.calling.classification import refusal_of
from fuseboard.calling.current_tenant import enter_tenant, leave_tenant
from fuseboard.calling.trace import enter_request, leave_request
from fuseboard.contract.endpoints import endpoint_of
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from fuseboard.integrations import preflight
from fuseboard.integrations.pod_answers import Answer, metrics_answer, readiness_answer, resilience_answer
from fuseboard.integrations.problem import close_code, close_reason, encoded, header_pairs, refusal
from fuseboard.protection.pod import ServedRequest
from fuseboard.subject import NO_SUBJECT, Subject

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("fuseboard.asgi")

_BEGINS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
#: A response, its file, or a connection ends here, unless more of the body follows.
_ENDS = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.close",
        "websocket.http.response.body",
    }
)

#: In the scope of a request that was counted, and could have been shed, already.
ENTERED = "fuseboard.entered"


def subject_of(scope: Scope) -> Subject:
    """The caller, as every ASGI server knows it: the address of the peer, the method and the path.

    Behind a proxy the peer is the proxy, unless the server reads its headers (uvicorn's
    ``--proxy-headers``). The path is the requested one, not the template of the route.
    """
    client = scope.get("client")
    return Subject(
        ip=client[0] if client else "", endpoint=endpoint_of(scope.get("method", "GET"), scope["path"])
    )


class FuseboardMiddleware:
    """Decides HTTP requests, and with ``websockets`` the handshakes of WebSockets too.

    ``tenant`` returns the tenant of a request. An empty or invalid name is limited like an unknown
    tenant. ``None`` is a caller without a tenant: with a ``subject``, the limits of its address or key
    decide; without one, nothing does (health checks). ``subject`` says who asks, below the tenant, like
    ``subject_of``. ``cost`` and ``costs`` return what the request costs. What these functions raise is
    the application's error. If a request would be refused, it waits, provided that the refusal ends
    within ``wait_s`` seconds; it spends nothing meanwhile. A CORS preflight costs nothing, and can be
    shed. What a request holds is free when its answer is complete, or its WebSocket closed. The agent
    starts and stops with the lifespan of the application, unless it is running already.
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
        websockets: bool = False,
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
        self._websockets = websockets
        #: Requests that passed because the agent could not decide.
        self.failed_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # In one piece: every further coroutine is a part of what the middleware costs each request.
        kind = scope["type"]
        if kind != "http" and not (self._websockets and kind == "websocket"):
            await self._pass(scope, receive, send)
            return
        visit: ServedRequest | None = None
        token = enter_request(partial(_traceparent, scope))
        tenant_token = None
        try:
            free = scope.get("method") == "OPTIONS" and preflight.in_scope(scope)
            if free:
                tenant, subject = None, subject_of(scope)
            else:
                tenant = self._tenant(scope)
                subject = (self._subject(scope) if self._subject is not None else None) or NO_SUBJECT
                if tenant:
                    tenant_token = enter_tenant(tenant)
            if tenant is None and subject == NO_SUBJECT:
                await self._serve(scope, receive, send, None, None)
                return
            entered = self._agent.enter_request(
                tenant, subject, scope.get("method", "GET"), scope.get("path", "")
            )
            if isinstance(entered, Decision):
                await self._refuse(scope, send, entered)
                return
            visit = entered
            if free:
                await self._serve(scope, receive, send, None, visit)
                return
            # ``fuseboard.integrations.fastapi.limited`` must not count the request again.
            scope[ENTERED] = True
            cost = self._cost(scope) if self._cost is not None else 1
            costs = self._costs(scope) if self._costs is not None else None
            decision: Decision | None = None
            try:
                decision = await self._agent.admit_request(
                    tenant, cost, costs=costs, subject=subject, wait_s=self._wait_s
                )
            except Misconfigured:
                self._note_failed_open()
            if decision is not None and not decision.allowed:
                await self._refuse(scope, send, decision)
            else:
                await self._serve(scope, receive, send, decision, visit)
        finally:
            if visit is not None:
                visit.leave()
            if tenant_token is not None:
                leave_tenant(tenant_token)
            leave_request(token)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _Lifespan(self._app, self._agent).run(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._serve(scope, receive, send, None, None)
        else:
            await self._app(scope, receive, send)

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        decision: Decision | None,
        visit: ServedRequest | None,
    ) -> None:
        answer = _Answer(send, self._agent, decision, visit)
        if decision is not None:
            answer.extra = header_pairs(decision, legacy=self._legacy)
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:
            refused = refusal_of(error)
            if refused is not None and not answer.started:
                await self._refuse(scope, send, refused.decision)
                return
            if refused is not None and scope["type"] == "websocket":
                if not answer.complete:
                    await send(closing(refused.decision))
                return
            if refused is None and visit is not None:
                visit.answered(500)
            raise
        finally:
            answer.finish()

    def _note_failed_open(self) -> None:
        """Not started, or an invalid cost. Refusing all requests would be worse than no limit."""
        self.failed_open += 1
        if self.failed_open == 1:
            logger.exception("asgi.failed_open: the request passed; further ones are only counted")

    async def _refuse(self, scope: Scope, send: Send, decision: Decision) -> None:
        status, headers, body = refusal(decision, legacy=self._legacy)
        kind = "http.response"
        if scope["type"] == "websocket":
            if not can_deny(scope):
                await send(closing(decision))
                return
            kind = "websocket.http.response"
        await send({"type": f"{kind}.start", "status": status, "headers": encoded(headers)})
        await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})


class _Answer:
    """The answer to one request. What the request holds is free when the answer is complete.

    Work after that, such as the background tasks of Starlette, holds nothing. A WebSocket holds its slots
    until it is closed, but is a request to the protection of the pod only until it is accepted.
    """

    __slots__ = ("_agent", "_decision", "_send", "_visit", "complete", "extra", "started")

    def __init__(
        self, send: Send, agent: Agent, decision: Decision | None, visit: ServedRequest | None
    ) -> None:
        self._send, self._agent, self._decision, self._visit = send, agent, decision, visit
        self.extra: list[tuple[bytes, bytes]] = []
        self.started = self.complete = False

    def send(self, message: Message) -> Awaitable[None]:
        kind = message["type"]
        if not self.started and kind in _BEGINS:
            self.started = True
            if self._visit is not None:
                # Here, not at the end: how long a stream lasts says nothing about the pod.
                self._visit.answered(message.get("status", 101))
                if kind == "websocket.accept":
                    self._visit.leave()
            if self.extra:
                message = {**message, "headers": [*message.get("headers", ()), *self.extra]}
        elif kind in _ENDS and not message.get("more_body"):
            self.complete = True
            decision = self._decision
            if self._visit is not None or (decision is not None and decision.holds_slots()):
                return self._send_last(message)
        return self._send(message)

    async def _send_last(self, message: Message) -> None:
        try:
            await self._send(message)
        finally:
            self.finish()

    def finish(self) -> None:
        decision, self._decision = self._decision, None
        # A leased call holds no slots.
        if decision is not None and not decision.leased:
            self._agent.finish(decision)
        if self._visit is not None:
            self._visit.leave()


def can_deny(scope: Scope) -> bool:
    """Whether the server can answer the handshake of a WebSocket with a response."""
    return "websocket.http.response" in (scope.get("extensions") or {})


def closing(decision: Decision) -> Message:
    """Closes a WebSocket because of a refusal: 1013 (try again later), or 1008 (policy violation)."""
    return {
        "type": "websocket.close",
        "code": close_code(decision),
        "reason": close_reason(decision),
    }


def _traceparent(scope: Scope) -> str:
    for name, value in scope.get("headers", ()):
        if name == b"traceparent":
            return bytes(value).decode("latin-1")
    return ""


def readiness(agent: Agent) -> App:
    """An ASGI application for readiness probes; see ``fuseboard.Agent.ready``. For a route, not a mount."""
    return _Description(lambda: readiness_answer(agent))


def resilience(agent: Agent) -> App:
    """An ASGI application with ``fuseboard.Agent.resilience`` as JSON.

    It checks no permission: add it where only operators can ask.
    """
    return _Description(lambda: resilience_answer(agent))


def metrics(agent: Agent) -> App:
    """An ASGI application with ``fuseboard.Agent.metrics_text``, for Prometheus to scrape.

    It checks no permission. It has the figures of this process alone: see ``docs/integration.md``.
    """
    return _Description(lambda: metrics_answer(agent))


class _Description:
    """An ASGI application that describes the pod.

    An object, not a function: a route of Starlette calls a function with a request, and a mount answers
    its path without a slash with a redirect, which a probe takes for success.
    """

    def __init__(self, answer: Callable[[], Answer]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a probe answers HTTP, not {scope['type']}")
        status, headers, body = self._answer()
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
