"""Django middleware, for ASGI and WSGI servers.

::

    MIDDLEWARE = [..., "fuseboard.integrations.django.FuseboardMiddleware", ...]
    FUSEBOARD = {"TENANT": "shop.limits.tenant_of"}

``FUSEBOARD`` may contain these, each as an object or a dotted path:

``TENANT``          required: request -> whose quota decides; see ``fuseboard.integrations.asgi``
``SUBJECT``         request -> ``fuseboard.Subject`` or ``None``; ``subject_of`` is one
``COST``, ``COSTS`` request -> what it costs
``AGENT``           an agent of ``fuseboard.blocking``; the default is made from the environment
``IDEMPOTENCY``     the options of ``fuseboard.integrations.django_idempotency``
``LEGACY_HEADERS``  ``True`` adds ``X-RateLimit-*``
``WAIT_S``          a request that would be refused waits, provided that the refusal ends within this many
                    seconds; by default, as its tier says

Place it after the middleware that identifies the caller. It answers refused requests, and a
``fuseboard.Refused`` that escapes from a view, alone or inside an error of a vendor's client. Views get the
same agent from ``agent()``::

    with agent().call("payments-api"): ...
    async with agent().acall("payments-api"): ...     # in an asynchronous view

Two views describe the pod::

    path("readyz", readiness()),        # 503 while the pod should get no new requests
    path("resilience", resilience()),   # what protects it, as JSON; for operators only
    path("metrics", metrics()),         # its figures, for Prometheus
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.module_loading import import_string
from django.utils.translation import get_language, get_language_from_path, override

from fuseboard import blocking
from fuseboard.agent_api.arguments import check_wait
from fuseboard.calling.classification import refusal_of
from fuseboard.calling.current_tenant import each_for, each_for_async, enter_tenant, leave_tenant
from fuseboard.calling.trace import enter_request, leave_request
from fuseboard.calling.waits import run_blocking
from fuseboard.contract.endpoints import endpoint_of
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from fuseboard.integrations import preflight
from fuseboard.integrations.pod_answers import Answer, metrics_answer, readiness_answer, resilience_answer
from fuseboard.integrations.problem import limit_headers, refusal
from fuseboard.protection.pod import ServedRequest
from fuseboard.subject import NO_SUBJECT, Subject

logger = logging.getLogger("fuseboard.django")

_OPTIONS = {"AGENT", "COST", "COSTS", "IDEMPOTENCY", "LEGACY_HEADERS", "SUBJECT", "TENANT", "WAIT_S"}

#: A view that raises one of these has chosen its answer, whatever the cause.
_ANSWERS = (BadRequest, Http404, PermissionDenied, SuspiciousOperation)

Question = dict[str, Any]
#: A step that waits on the event loop, or blocks: see ``run_blocking``.
Step = Callable[..., Awaitable[Any]]


def agent() -> blocking.Agent:
    """The agent that decides this project's requests. Views use it to guard their calls.

    An asynchronous view uses ``acall``, ``aadmit_call`` and ``aadmit_request``; the others would block it.
    """
    given = option("AGENT")
    return given if given is not None else _from_env()


def subject_of(request: HttpRequest) -> Subject:
    """The caller: the address of the peer (or of a proxy, unless ``REMOTE_ADDR`` is set), and the route.

    The endpoint is the method and the template of the route, like ``GET /orders/<int:pk>``.
    """
    return Subject(
        ip=request.META.get("REMOTE_ADDR", ""), endpoint=endpoint_of(request.method or "", _route_of(request))
    )


def decided(request: HttpRequest) -> Decision | None:
    """The decision of ``FuseboardMiddleware`` about this request: pass it to ``agent().settle``."""
    return getattr(request, "_fuseboard_decision", None)


def _route_of(request: HttpRequest) -> str:
    """The template of the route, or the path of a request that matches none.

    Routes can be different in each language, and this may run before the middleware that finds the language.
    """
    urlconf, path = getattr(request, "urlconf", None), request.path_info
    languages = (get_language_from_path(path) or get_language(), settings.LANGUAGE_CODE)
    for language in dict.fromkeys(languages):
        with override(language), suppress(Resolver404):
            return "/" + resolve(path, urlconf).route
    return path


class FuseboardMiddleware:
    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        unknown = sorted(set(getattr(settings, "FUSEBOARD", {})) - _OPTIONS)
        if unknown:
            raise ImproperlyConfigured(f"FUSEBOARD[{unknown[0]!r}] is unknown: it takes {sorted(_OPTIONS)}")
        self._tenant = option("TENANT")
        if self._tenant is None:
            raise ImproperlyConfigured(
                "FUSEBOARD['TENANT'] is not set: it returns the tenant whose quota decides a request"
            )
        self._subject, self._cost, self._costs = option("SUBJECT"), option("COST"), option("COSTS")
        self._legacy = bool(option("LEGACY_HEADERS"))
        self._wait_s = option("WAIT_S")
        try:
            check_wait(self._wait_s)
        except Misconfigured as error:
            raise ImproperlyConfigured(f"FUSEBOARD['WAIT_S']: {error}") from None
        self._agent = agent()
        #: Requests that passed because the agent could not decide.
        self.failed_open = 0
        self._asynchronous = iscoroutinefunction(get_response)
        if self._asynchronous:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._asynchronous:
            return self._serve(
                request, lambda **asked: self._agent.aadmit_request(**asked), self.get_response
            )
        admit = blocking_step(lambda **asked: self._agent.admit_request(**asked))
        respond = blocking_step(self.get_response)
        response: HttpResponseBase = run_blocking(self._serve(request, admit, respond))
        return response

    async def _serve(self, request: HttpRequest, admit: Step, respond: Step) -> HttpResponseBase:
        token = enter_request(lambda: request.headers.get("traceparent", ""))
        served = _Served(self._agent)
        tenant_token = None
        try:
            question = self._question(request)
            tenant = (question and question["tenant"]) or ""
            if tenant:
                tenant_token = enter_tenant(tenant)
            if question is not None:
                if (shed := self._enter(request, question, served)) is not None:
                    return self._refused(shed)
                try:
                    if "free" not in question:
                        served.decision = await admit(**question)
                except Misconfigured:
                    self._note_failure()
                request._fuseboard_decision = served.decision  # type: ignore[attr-defined]
                if (refused := served.refusal) is not None:
                    served.finish()
                    return self._refused(refused)
            return self._answered(_made_for(tenant, await respond(request)), served)
        except BaseException as error:
            served.failed(error)
            raise
        finally:
            if tenant_token is not None:
                leave_tenant(tenant_token)
            leave_request(token)

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """A guarded call was refused, and the view did not handle it."""
        if isinstance(exception, _ANSWERS):
            return None
        refused = refusal_of(exception)
        if refused is None:
            return None
        response = self._refused(refused.decision)
        # Not the application's own failure.
        response._fuseboard_refused = True  # type: ignore[attr-defined]
        return response

    def _question(self, request: HttpRequest) -> Question | None:
        if preflight.in_environ(request.META):
            return {"tenant": None, "subject": subject_of(request), "free": True}
        tenant = self._tenant(request)
        subject = self._subject(request) if self._subject is not None else None
        if tenant is None and (subject is None or subject == NO_SUBJECT):
            return None
        return {
            "tenant": tenant,
            "cost": self._cost(request) if self._cost is not None else 1,
            "costs": self._costs(request) if self._costs is not None else None,
            "subject": subject or NO_SUBJECT,
            "wait_s": self._wait_s,
        }

    def _enter(self, request: HttpRequest, question: Question, served: "_Served") -> Decision | None:
        """The decision that sheds the request; ``None`` when it goes on."""
        visit = self._agent.enter_request(
            question["tenant"], question["subject"], request.method or "", request.path
        )
        if isinstance(visit, Decision):
            return visit
        served.visit = visit
        return None

    def _answered(self, response: HttpResponseBase, served: "_Served") -> HttpResponseBase:
        if served.decision is not None:
            for name, value in limit_headers(served.decision, legacy=self._legacy):
                response.headers[name] = value
        if served.visit is not None and not getattr(response, "_fuseboard_refused", False):
            served.visit.answered(response.status_code)
        if response.streaming and (served.decision is not None or served.visit is not None):
            close = response.close

            def close_and_finish() -> None:
                try:
                    served.finish()
                finally:
                    close()

            response.close = close_and_finish  # type: ignore[method-assign] # the server calls it at the end
        else:
            served.finish()
        return response

    def _refused(self, decision: Decision) -> HttpResponse:
        return response_of(refusal(decision, legacy=self._legacy))

    def _note_failure(self) -> None:
        # An invalid cost. Refusing all requests would be worse than no limit.
        self.failed_open += 1
        if self.failed_open == 1:
            logger.exception("django.failed_open: the request passed; further ones are only counted")


def _made_for(tenant: str, response: HttpResponseBase) -> HttpResponseBase:
    """``response``. The parts of a streamed one are made for this tenant while the server reads them."""
    if tenant and isinstance(response, StreamingHttpResponse) and not isinstance(response, FileResponse):
        parts: Any = response.streaming_content
        response.streaming_content = (each_for_async if response.is_async else each_for)(tenant, parts)
    return response


def blocking_step(function: Callable[..., Any]) -> Step:
    """The function as a step that blocks."""

    async def step(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    return step


class _Served:
    """The decisions and slots of one request until it ends."""

    __slots__ = ("_agent", "decision", "visit")

    def __init__(self, agent: blocking.Agent) -> None:
        self._agent = agent
        self.visit: ServedRequest | None = None
        self.decision: Decision | None = None

    @property
    def refusal(self) -> Decision | None:
        """The decision of a limit that refuses the request."""
        return self.decision if self.decision is not None and not self.decision.allowed else None

    def finish(self) -> None:
        if self.decision is not None and self.decision.allowed:
            self._agent.finish(self.decision)
        if self.visit is not None:
            self.visit.leave()

    def failed(self, error: BaseException) -> None:
        if self.visit is not None and isinstance(error, Exception):
            self.visit.answered(500)
        self.finish()


def readiness(agent: blocking.Agent | None = None) -> Callable[[HttpRequest], HttpResponse]:
    """A view for readiness probes; see ``fuseboard.Agent.ready``. By default of the project's agent."""
    return _view(lambda: readiness_answer(_given_or_own(agent)))


def resilience(agent: blocking.Agent | None = None) -> Callable[[HttpRequest], HttpResponse]:
    """A view with ``fuseboard.Agent.resilience`` as JSON.

    It checks no permission: wrap it, or route it where only operators can ask.
    """
    return _view(lambda: resilience_answer(_given_or_own(agent)))


def metrics(agent: blocking.Agent | None = None) -> Callable[[HttpRequest], HttpResponse]:
    """A view with ``fuseboard.Agent.metrics_text``, for Prometheus to scrape.

    It checks no permission. It has the figures of this process alone: see ``docs/integration.md``.
    """
    return _view(lambda: metrics_answer(_given_or_own(agent)))


def _given_or_own(given: blocking.Agent | None) -> blocking.Agent:
    return given if given is not None else agent()


def _view(answer: Callable[[], Answer]) -> Callable[[HttpRequest], HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        return response_of(answer())

    return view


def response_of(answer: Answer) -> HttpResponse:
    status, headers, body = answer
    return HttpResponse(body, status=status, headers=dict(headers))


def option(name: str) -> Any:
    """A value of ``FUSEBOARD``, imported if it is a dotted path; ``None`` without one."""
    given = getattr(settings, "FUSEBOARD", {}).get(name)
    return import_string(given) if isinstance(given, str) else given


@cache
def _from_env() -> blocking.Agent:
    return blocking.from_env()
