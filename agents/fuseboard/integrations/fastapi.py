"""FastAPI dependency: limits on single routes, by the template of the route.

::

    app.add_exception_handler(Refused, answer_refused)

    @app.post("/orders/{id}", dependencies=[Depends(limited(agent, tenant=current_tenant))])

``current_tenant`` is a dependency like any other: it may take headers, tokens and other dependencies.
``FuseboardMiddleware`` decides earlier, and for all routes. Use this when the tenant is known only
after authentication, or when routes differ in cost. On a WebSocket route it decides the handshake.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import BackgroundTasks, Depends, HTTPException, Response, WebSocket, WebSocketException
from starlette.requests import HTTPConnection
from starlette.types import Scope
from starlette.websockets import WebSocketState

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_wait
from fuseboard.calling.classification import refusal_of
from fuseboard.calling.current_tenant import current_tenant, enter_tenant
from fuseboard.contract.endpoints import endpoint_of
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.integrations import preflight
from fuseboard.integrations.asgi import ENTERED, can_deny
from fuseboard.integrations.problem import close_code, close_reason, limit_headers, refusal
from fuseboard.protection.pod import ServedRequest
from fuseboard.subject import NO_SUBJECT, Subject

Dependency = Callable[..., Any]


class LimitReached(Refused, HTTPException):
    """The request was refused. Without ``answer_refused``, FastAPI answers it in its own format."""

    def __init__(self, decision: Decision, *, legacy: bool = False) -> None:
        self.answer = status, headers, body = refusal(decision, legacy=legacy)
        ours = {name: value for name, value in headers if not name.startswith("content-")}
        # This is the same body, so that ``retry_after`` equals the header, which has a random part.
        HTTPException.__init__(self, status, detail=json.loads(body), headers=ours)
        self.decision = decision


class ConnectionRefused(Refused, WebSocketException):
    """A WebSocket was refused, where no response is possible: it is closed with a code and a reason."""

    def __init__(self, decision: Decision) -> None:
        WebSocketException.__init__(self, close_code(decision), close_reason(decision))
        self.decision = decision


def subject_of(request: HTTPConnection) -> Subject:
    """The caller: the address of the peer, the method and the template of the route.

    The template has the prefixes of routers and mounts, and not the root path of the server. The handshake
    of a WebSocket is a GET.
    """
    scope = request.scope
    return Subject(
        ip=request.client.host if request.client else "",
        endpoint=endpoint_of(scope.get("method", "GET"), _template_of(scope)),
    )


def _template_of(scope: Scope) -> str:
    # Newer versions do not copy the routes of an included router: they have the whole path here.
    context = (scope.get("fastapi") or {}).get("effective_route_context")
    route = getattr(context, "path", None) or getattr(scope.get("route"), "path", None)
    if route is None:
        return str(scope["path"])
    mount = ""
    if "app_root_path" in scope:
        mount = scope.get("root_path", "").removeprefix(scope["app_root_path"])
        for name, value in scope.get("path_params", {}).items():
            # The parameters of mounts are known by their values only.
            before, found, after = mount.rpartition(f"/{value}")
            if found and f"{{{name}" not in route and (not after or after.startswith("/")):
                mount = f"{before}/{{{name}}}{after}"
    return f"{mount}{route}"


def _one() -> int:
    return 1


def _nothing_else() -> None:
    return None


def limited(
    agent: Agent,
    *,
    tenant: Dependency,
    cost: Dependency = _one,
    costs: Dependency = _nothing_else,
    subject: Dependency = subject_of,
    legacy_headers: bool = False,
    wait_s: float | None = None,
) -> Callable[..., AsyncIterator[Decision | None]]:
    """A dependency that decides the request, or the handshake of a WebSocket.

    What it holds is free when the response has been sent, before its background tasks run, unless the route
    returns a ``Response`` with tasks of its own; or when the WebSocket is closed.

    ``tenant``, ``cost``, ``costs`` and ``subject`` are dependencies: they return what
    ``Agent.admit_request`` takes. A tenant of ``None`` is decided by the limits of its address or key.
    Responses that FastAPI makes get the headers of the limits; a route that returns its own
    ``Response`` sets its own headers. If a request would be refused, it waits, provided that the
    refusal ends within ``wait_s`` seconds. Raises ``LimitReached``, which is a ``fuseboard.Refused``.

    Without the ASGI middleware, the protection of the pod counts a request until its response has been
    sent. For responses that are long streams, use the middleware. A CORS preflight costs nothing, and can be
    shed.
    """
    check_wait(wait_s)

    async def decide(
        connection: HTTPConnection,
        response: Response,
        after: BackgroundTasks,
        whose: Annotated[str | None, Depends(tenant)],
        calls: Annotated[int, Depends(cost)],
        estimates: Annotated[Mapping[str, int] | None, Depends(costs)],
        who: Annotated[Subject | None, Depends(subject)],
    ) -> AsyncIterator[Decision | None]:
        if preflight.in_scope(connection.scope):
            with _visiting(agent, connection, None, subject_of(connection), legacy_headers) as held:
                after.add_task(held.answered)
                yield None
            return
        if whose is None and (who is None or who == NO_SUBJECT):
            yield None
            return
        with _visiting(agent, connection, whose, who or NO_SUBJECT, legacy_headers) as held:
            decision = await agent.admit_request(
                whose, calls, costs=estimates, subject=who or NO_SUBJECT, wait_s=wait_s
            )
            if not decision.allowed:
                raise _refused(connection, decision, legacy_headers)
            held.decision = decision
            for name, value in limit_headers(decision, legacy=legacy_headers):
                response.headers[name] = value
            if connection.scope["type"] == "websocket":
                held.accepted()
            # The first of the tasks, so that work after the answer holds nothing.
            after.add_task(held.answered)
            with _working_for(whose):
                yield decision

    return decide


@contextmanager
def _working_for(name: str | None) -> Iterator[None]:
    """The route works for this tenant: its calls to models are charged to it."""
    before = current_tenant()
    if name:
        enter_tenant(name)
    try:
        yield
    finally:
        # Not by its token: the generator of this dependency may be closed in another context.
        enter_tenant(before)


def _refused(connection: HTTPConnection, decision: Decision, legacy: bool) -> Refused:
    answers = connection.scope["type"] == "http" or can_deny(connection.scope)
    return LimitReached(decision, legacy=legacy) if answers else ConnectionRefused(decision)


class _Held:
    """The decisions and slots of a request until its answer is complete, or its WebSocket closed."""

    def __init__(self, agent: Agent, visit: ServedRequest | None) -> None:
        self._agent, self.visit = agent, visit
        self.decision: Decision | None = None

    def accepted(self) -> None:
        """A WebSocket keeps its slots, and is no request in progress any more."""
        if self.visit is not None:
            self.visit.answered(101)
            self.visit.leave()

    async def answered(self) -> None:
        """A coroutine, because the tasks of FastAPI run other functions in threads."""
        if self.visit is not None:
            self.visit.answered(200)
        self.finish()

    def finish(self) -> None:
        decision, self.decision = self.decision, None
        if decision is not None:
            self._agent.finish(decision)
        if self.visit is not None:
            self.visit.leave()


@contextmanager
def _visiting(
    agent: Agent, connection: HTTPConnection, tenant: str | None, subject: Subject, legacy: bool
) -> Iterator[_Held]:
    """Count the request, or shed it, unless the middleware or another dependency has done it."""
    scope, visit = connection.scope, None
    if ENTERED not in scope:
        scope[ENTERED] = True
        visit = agent.enter_request(tenant, subject, scope.get("method", "GET"), scope["path"])
    if isinstance(visit, Decision):
        raise _refused(connection, visit, legacy)
    held = _Held(agent, visit)
    try:
        yield held
        if visit is not None:
            visit.answered(200)
    except (LimitReached, ConnectionRefused):
        raise  # not an answer of the application
    except Exception as error:
        # The application has chosen an answer, whatever the cause.
        chosen = isinstance(error, HTTPException | WebSocketException)
        refused = None if chosen else refusal_of(error)
        if scope["type"] == "websocket" and refused is not None:
            raise ConnectionRefused(refused.decision) from error
        if visit is not None and refused is None:
            visit.answered(error.status_code if isinstance(error, HTTPException) else 500)
        raise
    finally:
        held.finish()


async def answer_refused(request: HTTPConnection, refused: Exception) -> Response | None:
    """Exception handler: problem+json for a refused request, or for a refused call that it made.

    Add it for the errors of a vendor's client too (``anthropic.APIConnectionError``): these clients wrap
    what their transport raises. An error without a refusal inside is raised again. A WebSocket that is
    accepted, or a server that cannot answer its handshake, gets a closing frame.
    """
    found = refusal_of(refused)
    if found is None:
        raise refused
    if isinstance(request, WebSocket) and not (
        request.application_state is WebSocketState.CONNECTING and can_deny(request.scope)
    ):
        await request.close(close_code(found.decision), close_reason(found.decision))
        return None
    status, headers, body = found.answer if isinstance(found, LimitReached) else refusal(found.decision)
    return Response(body, status, headers=dict(headers))
