"""FastAPI dependency: limits on single routes, by the template of the route.

::

    app.add_exception_handler(Refused, answer_refused)

    @app.post("/orders/{id}", dependencies=[Depends(limited(agent, tenant=current_tenant))])

``current_tenant`` is a dependency like any other: it may take headers, tokens and other dependencies.
``FuseboardMiddleware`` decides earlier, and for all routes. Use this when the tenant is known only
after authentication, or when routes differ in cost.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, Response

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_wait
from fuseboard.calling.classification import refusal_of
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.integrations.asgi import ENTERED
from fuseboard.integrations.problem import limit_headers, refusal
from fuseboard.subject import NOBODY, Subject

Dependency = Callable[..., Any]


class LimitReached(Refused, HTTPException):
    """The request was refused. Without ``answer_refused``, FastAPI answers it in its own format."""

    def __init__(self, decision: Decision) -> None:
        status, headers, body = refusal(decision)
        ours = {name: value for name, value in headers if not name.startswith("content-")}
        # The same body, so that ``retry_after`` equals the header, which has a random part.
        HTTPException.__init__(self, status, detail=json.loads(body), headers=ours)
        self.decision = decision


def subject_of(request: Request) -> Subject:
    """Who asks: the address of the peer, the method and the template of the route."""
    route = request.scope.get("route")
    path = getattr(route, "path", request.url.path)
    return Subject(ip=request.client.host if request.client else "", endpoint=f"{request.method} {path}")


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
    """A dependency that decides the request. It ends when the response has been sent.

    ``tenant``, ``cost``, ``costs`` and ``subject`` are dependencies: they return what
    ``Agent.admit_request`` takes. A tenant of ``None`` is decided by the limits of its address or key.
    Responses that FastAPI makes get the headers of the limits; a route that returns its own
    ``Response`` sets its own headers. If a request would be refused, it waits, provided that the
    refusal ends within ``wait_s`` seconds. Raises ``LimitReached``, which is a ``fuseboard.Refused``.

    Without the ASGI middleware, the protection of the pod counts a request until its response has been
    sent. For responses that are long streams, use the middleware.
    """
    check_wait(wait_s)

    async def decide(
        request: Request,
        response: Response,
        whose: Annotated[str | None, Depends(tenant)],
        calls: Annotated[int, Depends(cost)],
        estimates: Annotated[Mapping[str, int] | None, Depends(costs)],
        who: Annotated[Subject | None, Depends(subject)],
    ) -> AsyncIterator[Decision | None]:
        if whose is None and (who is None or who == NOBODY):
            yield None
            return
        with _visiting(agent, request, whose, who or NOBODY):
            decision = await agent.admit_request(
                whose, calls, costs=estimates, subject=who or NOBODY, wait_s=wait_s
            )
            if not decision.allowed:
                raise LimitReached(decision)
            for name, value in limit_headers(decision, legacy=legacy_headers):
                response.headers[name] = value
            try:
                yield decision
            finally:
                agent.finish(decision)

    return decide


@contextmanager
def _visiting(agent: Agent, request: Request, tenant: str | None, subject: Subject) -> Iterator[None]:
    """Count the request, or shed it, unless the middleware or another dependency has done it."""
    visit = None
    if ENTERED not in request.scope:
        request.scope[ENTERED] = True
        visit = agent.enter_request(tenant, subject, request.method, request.url.path)
    if isinstance(visit, Decision):
        raise LimitReached(visit)
    if visit is None:
        yield
        return
    try:
        yield
        visit.answered(200)
    except LimitReached:
        raise  # not an answer of the application
    except HTTPException as error:
        visit.answered(error.status_code)
        raise
    except Exception as error:
        if refusal_of(error) is None:
            visit.answered(500)
        raise
    finally:
        visit.leave()


async def answer_refused(request: Request, refused: Exception) -> Response:
    """Exception handler: problem+json for a refused request, or for a refused call that it made.

    Add it for the errors of a vendor's client too (``anthropic.APIConnectionError``): these clients wrap
    what their transport raises. An error without a refusal inside is raised again.
    """
    found = refusal_of(refused)
    if found is None:
        raise refused
    status, headers, body = refusal(found.decision)
    return Response(body, status, headers=dict(headers))
