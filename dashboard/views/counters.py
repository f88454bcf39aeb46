"""Clears the counter of a limit."""

import redis
import structlog
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.errors import InvalidEdit, NotFound
from controlplane.usage.clear_counter import DOWN, clear_counter
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.views.page import bounded_text, context_of

log = structlog.get_logger(__name__)

#: What a limit can count by -> the label of its value.
BY = (("user", "User"), ("ip", "Address"), ("api_key", "API key"), ("endpoint", "Endpoint"))
_NAMED = ("tenant", "dependency", "limit")


@never_cache
@require_http_methods(["GET", "POST"])
@require("clear_counter")
def clear(request: HttpRequest) -> HttpResponse:
    """A form; the caller is in the body of its POST, because addresses are logged."""
    if request.method != "POST":
        return _page(request)
    typed = {name: bounded_text(request.POST, name, most=201).strip() for name in _NAMED}
    by = {name: bounded_text(request.POST, name, most=201).strip() for name, _ in BY}
    try:
        counted = clear_counter(
            environment=environment_in(request),
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            values=by,
            **typed,
        )
    except InvalidEdit as error:
        return _page(request, errors=error.errors, status=422)
    except NotFound as error:
        return _page(request, errors={"limit": [str(error)]}, status=422)
    except redis.RedisError as error:
        log.warning("counter.not_cleared", error=str(error))
        return _page(request, errors={"limit": [DOWN]}, status=503)
    hub.nudge()
    empty = "" if counted else " It was empty already."
    messages.success(request, f"The counter of {typed['limit']} is cleared.{empty}")
    if typed["tenant"]:
        return redirect(reverse("tenant", query={"key": typed["tenant"]}))
    return redirect("clear_counter")


def _page(
    request: HttpRequest, *, errors: dict[str, list[str]] | None = None, status: int = 200
) -> HttpResponse:
    typed = request.POST or request.GET
    # A link from the row of a limit names it; an address of a caller is typed.
    values = [(name, label, request.POST.get(name, ""), (errors or {}).get(name)) for name, label in BY]
    context = context_of(request, "limits", errors=errors or {}, typed=typed, by=values)
    return render(request, "dashboard/clear_counter.html", context, status=status)
