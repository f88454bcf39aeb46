from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.status.last_hour import refused_lately, retries_lately
from dashboard.views.page import context_of, show


@require_GET
@require_role("viewer")
def overview(request: HttpRequest) -> HttpResponse:
    return show(request, "overview", "overview.html")


@require_GET
@require_role("viewer")
def servers(request: HttpRequest) -> HttpResponse:
    return servers_page(request)


def servers_page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    """The page of pods; ``errors`` are of its form for silent pods."""
    kinds = (
        ("", "All"),
        ("local", "Local fallback"),
        ("drill", "Drill"),
        ("lag", "Old config"),
        ("silent", "Silent"),
        ("unhealthy", "Unhealthy"),
        ("shared", "Shared"),
    )
    may_lift = may(request.user, "lift_freeze", environment_in(request))
    extra |= {"kinds": kinds, "may_lift": may_lift}
    return show(request, "servers", "servers.html", status=status, **extra)


@require_GET
@require_role("viewer")
def bulkheads(request: HttpRequest) -> HttpResponse:
    return _with_last_hour(request, "bulkheads", refused_lately)


@require_GET
@require_role("viewer")
def locks(request: HttpRequest) -> HttpResponse:
    return show(request, "locks", "locks.html")


@require_GET
@require_role("viewer")
def retries(request: HttpRequest) -> HttpResponse:
    return _with_last_hour(request, "retries", retries_lately)


def _with_last_hour(
    request: HttpRequest, page: str, lately: Callable[[str, Sequence[str], datetime], object]
) -> HttpResponse:
    context = context_of(request, page)
    names = [row.dependency for row in context["rows"]]
    try:
        context["lately"] = lately(environment_in(request), names, timezone.now())
    except (OperationalError, InterfaceError):
        # Live figures come from the gateways, and are displayed all the same.
        context["lately"] = None
    return render(request, f"dashboard/{page}.html", context)


@require_GET
@require_role("viewer")
def limits(request: HttpRequest) -> HttpResponse:
    return show(request, "limits", "limits.html")
