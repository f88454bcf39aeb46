"""A throttle class for Django REST framework: limits decide after the view has authenticated the caller.

::

    REST_FRAMEWORK = {
        "DEFAULT_THROTTLE_CLASSES": ["fuseboard.integrations.drf.FuseboardThrottle"],
        "EXCEPTION_HANDLER": "fuseboard.integrations.drf.exception_handler",
    }

It uses ``FUSEBOARD`` of the settings, like ``fuseboard.integrations.django``; ``TENANT`` gets the request of
REST framework, with its ``user``. A request that ``FuseboardMiddleware`` has decided passes: it is charged
once. The throttle spends quotas; only the middleware measures requests and sheds them.
"""

import json
import logging
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from rest_framework.exceptions import APIException
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.views import exception_handler as default_handler

from fuseboard.calling.classification import refusal_of
from fuseboard.calling.current_tenant import enter_tenant
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured, Refused
from fuseboard.integrations import preflight
from fuseboard.integrations.django import agent, decided, option, response_of, subject_of
from fuseboard.integrations.problem import Headers, limit_headers, refusal
from fuseboard.subject import NO_SUBJECT, Subject

logger = logging.getLogger("fuseboard.drf")


class RequestRefused(Refused, APIException):  # type: ignore[misc] # the library has no types
    """A refusal that is not a spent limit: a suspended tenant, or a store that is down."""

    def __init__(self, decision: Decision) -> None:
        APIException.__init__(self)
        self.decision = decision
        self.status_code, headers, body = refusal(decision, legacy=bool(option("LEGACY_HEADERS")))
        self.headers = _without_content(headers)
        # The document is returned as it is: REST framework would make every value a text.
        self.detail = json.loads(body)


class FuseboardThrottle(BaseThrottle):  # type: ignore[misc] # the library has no types
    """Override ``tenant_of``, ``subject_of``, ``cost_of`` and ``costs_of`` for one view."""

    #: A request that would be refused waits in its thread, as ``WAIT_S`` of the middleware.
    wait_s: float | None = None
    #: Requests that passed because the agent could not decide.
    failed_open = 0

    def __init__(self) -> None:
        self._wait: int | None = None

    def tenant_of(self, request: Request, view: APIView) -> str | None:
        """The tenant whose quotas decide; ``None`` for a caller that has none."""
        tenant = option("TENANT")
        return tenant(request) if tenant is not None else None

    def subject_of(self, request: Request, view: APIView) -> Subject:
        subject = option("SUBJECT")
        if subject is not None:
            return subject(request) or NO_SUBJECT
        known = subject_of(request._request)
        user = str(request.user.pk) if request.user and request.user.is_authenticated else ""
        return Subject(user=user, ip=known.ip, endpoint=known.endpoint)

    def cost_of(self, request: Request, view: APIView) -> int:
        cost = option("COST")
        return cost(request) if cost is not None else 1

    def costs_of(self, request: Request, view: APIView) -> dict[str, int] | None:
        costs = option("COSTS")
        return costs(request) if costs is not None else None

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Charge the request. ``False`` if a limit is spent; ``wait`` has the time.

        Raises ``RequestRefused`` for a refusal of another kind.
        """
        if decided(request._request) is not None or preflight.in_environ(request.META):
            return True
        tenant, subject = self.tenant_of(request, view), self.subject_of(request, view)
        if tenant is None and subject == NO_SUBJECT:
            return True
        try:
            decision = agent().admit_request(
                tenant,
                self.cost_of(request, view),
                costs=self.costs_of(request, view),
                subject=subject,
                wait_s=self.wait_s if self.wait_s is not None else option("WAIT_S"),
            )
        except Misconfigured:
            self._note_failed_open()
            return True
        if decision.allowed:
            view.headers.update(limit_headers(decision, legacy=bool(option("LEGACY_HEADERS"))))
            _finish_at_close(request._request, decision, tenant)
            return True
        refused = RequestRefused(decision)
        view.headers.update(refused.headers)
        if refused.status_code != 429:
            raise refused
        self._wait = refused.detail.get("retry_after")
        return False

    def wait(self) -> int | None:
        """Seconds, as in ``Retry-After``; ``None`` if waiting does not help."""
        return self._wait

    def _note_failed_open(self) -> None:
        """An invalid cost. Refusing all requests would be worse than no limit."""
        FuseboardThrottle.failed_open += 1
        if FuseboardThrottle.failed_open == 1:
            logger.exception("drf.failed_open: the request passed; further ones are only counted")


def _without_content(headers: Headers) -> dict[str, str]:
    return {name: value for name, value in headers if not name.startswith("content-")}


def _finish_at_close(request: HttpRequest, decision: Decision, tenant: str | None) -> None:
    """Work for the tenant, and hold the slots, until the server closes the response, which closes the request
    first.
    """
    close, left = request.close, [decision]
    # An empty one too: a server may not have closed the request before in this thread.
    enter_tenant(tenant or "")

    def close_and_finish() -> None:
        if left:
            agent().finish(left.pop())
            # Not by its token: an asynchronous server closes the request in another context.
            enter_tenant("")
        close()

    request.close = close_and_finish  # type: ignore[method-assign]


def exception_handler(error: Exception, context: dict[str, Any]) -> Any:
    """Answer a ``Refused`` that escapes from a view with problem+json, and other errors as usual."""
    chosen = isinstance(error, APIException | Http404 | PermissionDenied)
    refused = None if chosen else refusal_of(error)
    if refused is None:
        return default_handler(error, context)
    return response_of(refusal(refused.decision, legacy=bool(option("LEGACY_HEADERS"))))
