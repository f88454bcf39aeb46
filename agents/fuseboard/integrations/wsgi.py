"""WSGI middleware: limits decide before the application gets the request.

::

    app = FuseboardMiddleware(app, agent=fuseboard.blocking.from_env(), tenant=tenant_of)

Like ``fuseboard.integrations.asgi``, with an agent of ``fuseboard.blocking``, and with functions of the
WSGI environment instead of the scope. ``readiness``, ``resilience`` and ``metrics`` are there
too.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeAlias

from fuseboard.agent_api.arguments import check_wait
from fuseboard.blocking import Agent
from fuseboard.calling.classification import refusal_of
from fuseboard.calling.current_tenant import each_for, enter_tenant, leave_tenant
from fuseboard.calling.trace import enter_request, leave_request
from fuseboard.contract.endpoints import endpoint_of
from fuseboard.contract.words import Algorithm
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from fuseboard.integrations import preflight
from fuseboard.integrations.pod_answers import Answer, metrics_answer, readiness_answer, resilience_answer
from fuseboard.integrations.problem import Headers, limit_headers, refusal
from fuseboard.protection.pod import ServedRequest
from fuseboard.subject import NO_SUBJECT, Subject

Environ: TypeAlias = dict[str, Any]
ExcInfo: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None
)
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]

logger = logging.getLogger("fuseboard.wsgi")


def subject_of(environ: Environ) -> Subject:
    """The caller: the address of the peer (or of a proxy, unless ``REMOTE_ADDR`` is set), method and path."""
    endpoint = endpoint_of(environ["REQUEST_METHOD"], _path_of(environ))
    return Subject(ip=environ.get("REMOTE_ADDR", ""), endpoint=endpoint)


def _path_of(environ: Environ) -> str:
    """The path as text. A server passes each of its bytes as one character (PEP 3333)."""
    path: str = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    with suppress(UnicodeError):
        return path.encode("latin-1").decode()
    return path


class FuseboardMiddleware:
    """See ``fuseboard.integrations.asgi`` for the arguments. A request that waits occupies its thread."""

    def __init__(
        self,
        app: App,
        agent: Agent,
        tenant: Callable[[Environ], str | None],
        cost: Callable[[Environ], int] | None = None,
        subject: Callable[[Environ], Subject | None] | None = None,
        costs: Callable[[Environ], Mapping[str, int]] | None = None,
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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        token = enter_request(lambda: environ.get("HTTP_TRACEPARENT", ""))
        tenant_token = None
        try:
            free = preflight.in_environ(environ)
            tenant = None if free else self._tenant(environ)
            if not tenant:
                return self._decided(environ, start_response, tenant, free=free)
            tenant_token = enter_tenant(tenant)
            body = self._decided(environ, start_response, tenant, free=False)
            return _for_tenant(tenant, body, environ.get("wsgi.file_wrapper"))
        finally:
            if tenant_token is not None:
                leave_tenant(tenant_token)
            leave_request(token)

    def _decided(
        self, environ: Environ, start_response: StartResponse, tenant: str | None, *, free: bool
    ) -> Iterable[bytes]:
        if free:
            subject = subject_of(environ)
        else:
            subject = (self._subject(environ) if self._subject is not None else None) or NO_SUBJECT
        if tenant is None and subject == NO_SUBJECT:
            return self._serve(environ, start_response, [], None)
        visit = self._agent.enter_request(tenant, subject, environ["REQUEST_METHOD"], _path_of(environ))
        if isinstance(visit, Decision):
            return self._refuse(environ, start_response, visit)
        try:
            if free:
                body = self._serve(environ, start_response, [], visit)
            else:
                body = self._handle(environ, start_response, tenant, subject, visit)
            if visit is None:
                return body
        except BaseException:
            if visit is not None:
                visit.leave()
            raise
        return _ending(body, visit.leave)

    def _handle(
        self,
        environ: Environ,
        start_response: StartResponse,
        tenant: str | None,
        subject: Subject,
        visit: ServedRequest | None,
    ) -> Iterable[bytes]:
        decision = self._decide(environ, tenant, subject)
        if decision is None:
            return self._serve(environ, start_response, [], visit)
        if not decision.allowed:
            return self._refuse(environ, start_response, decision)
        try:
            body = self._serve(environ, start_response, limit_headers(decision, legacy=self._legacy), visit)
        except BaseException:
            self._agent.finish(decision)
            raise
        if any(limit.algorithm is Algorithm.CONCURRENCY for limit in decision.limits):
            return _ending(body, lambda: self._agent.finish(decision))
        return body

    def _decide(self, environ: Environ, tenant: str | None, subject: Subject) -> Decision | None:
        cost = self._cost(environ) if self._cost is not None else 1
        costs = self._costs(environ) if self._costs is not None else None
        try:
            return self._agent.admit_request(tenant, cost, costs=costs, subject=subject, wait_s=self._wait_s)
        except Misconfigured:
            # An invalid cost. Refusing all requests would be worse than no limit.
            self.failed_open += 1
            if self.failed_open == 1:
                logger.exception("wsgi.failed_open: the request passed; further ones are only counted")
            return None

    def _serve(
        self, environ: Environ, start_response: StartResponse, extra: Headers, visit: ServedRequest | None
    ) -> Iterable[bytes]:
        started = False

        def start_with_headers(
            status: str, headers: Headers, exc_info: ExcInfo = None
        ) -> Callable[[bytes], object]:
            nonlocal started
            started = True
            if visit is not None:
                visit.answered(int(status.split(maxsplit=1)[0]))
            return start_response(status, [*headers, *extra], exc_info)

        def failed(error: Exception) -> Iterable[bytes]:
            refused = refusal_of(error)
            if refused is not None and not started:
                return self._refuse(environ, start_response, refused.decision)
            if refused is None and visit is not None:
                visit.answered(500)
            raise error

        try:
            body = self._app(environ, start_with_headers)
        except Exception as error:
            return failed(error)
        return body if started and visit is None else _Body(body, failed)

    def _refuse(self, environ: Environ, start_response: StartResponse, decision: Decision) -> Iterable[bytes]:
        status, headers, body = refusal(decision, legacy=self._legacy)
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


def readiness(agent: Agent) -> App:
    """A WSGI application for readiness probes; see ``fuseboard.Agent.ready``."""
    return _application(lambda: readiness_answer(agent))


def resilience(agent: Agent) -> App:
    """A WSGI application with ``fuseboard.Agent.resilience`` as JSON.

    It checks no permission: mount it where only operators can ask.
    """
    return _application(lambda: resilience_answer(agent))


def metrics(agent: Agent) -> App:
    """A WSGI application with ``fuseboard.Agent.metrics_text``, for Prometheus to scrape.

    It checks no permission. It has the figures of this process alone: see ``docs/integration.md``.
    """
    return _application(lambda: metrics_answer(agent))


def _application(answer: Callable[[], Answer]) -> App:
    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        status, headers, body = answer()
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]

    return application


class _Body:
    """A response body. What the request holds is free when the body ends, before the application's own
    ``close``: work after the answer holds nothing.

    An application that is a generator runs, and fails, only while its body is read. ``failed`` returns the
    answer to its error, or raises the error.
    """

    def __init__(
        self, body: Iterable[bytes], failed: Callable[[Exception], Iterable[bytes]] | None = None
    ) -> None:
        self._body, self._failed = body, failed
        self.ended = ExitStack()

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception as error:
            if self._failed is None:
                raise
            yield from self._failed(error)

    def close(self) -> None:
        """The server calls it exactly once, whatever happened (PEP 3333)."""
        try:
            self.ended.close()
        finally:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()


def _for_tenant(tenant: str, body: Iterable[bytes], file: object) -> Iterable[bytes]:
    """``body``, which is made for this tenant also where that happens while the server reads it."""
    # Servers send a file in a quicker way, if they recognize it.
    if isinstance(body, list | tuple) or (isinstance(file, type) and isinstance(body, file)):
        return body
    made = _Body(each_for(tenant, iter(body)))
    if (close := getattr(body, "close", None)) is not None:
        made.ended.callback(close)
    return made


def _ending(body: Iterable[bytes], ended: Callable[[], None]) -> _Body:
    """``body``, which calls ``ended`` at its end."""
    held = body if isinstance(body, _Body) else _Body(body)
    held.ended.callback(ended)
    return held
