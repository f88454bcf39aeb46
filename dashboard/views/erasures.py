"""Erases what is stored about one caller."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.erasure import erase
from controlplane.errors import InvalidEdit
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.views.page import bounded_text, context_of

KINDS = (("ip", "Address"), ("user", "Login"), ("api_key", "API key"), ("tenant", "Tenant"))


@never_cache
@require_http_methods(["GET", "POST"])
@require("erase")
def erase_caller(request: HttpRequest) -> HttpResponse:
    """A form; the caller is in the body of its POST, because addresses are logged."""
    if request.method != "POST":
        return _page(request)
    try:
        erased = erase(
            environment=environment_in(request),
            kind=request.POST.get("kind", ""),
            value=bounded_text(request.POST, "value", most=201).strip(),
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        return _page(request, errors=error.errors, status=422)
    hub.nudge()
    messages.success(request, f"Erased {erased.words}.")
    return redirect("erase")


def _page(
    request: HttpRequest, *, errors: dict[str, list[str]] | None = None, status: int = 200
) -> HttpResponse:
    context = context_of(request, "refusals", kinds=KINDS, errors=errors or {}, typed=request.POST)
    return render(request, "dashboard/erase.html", context, status=status)
