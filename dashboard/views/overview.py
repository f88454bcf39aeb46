from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import SHOWN, may, require_role
from dashboard.views.page import show


@require_GET
@require_role("viewer")
def overview(request: HttpRequest) -> HttpResponse:
    return show(request, "overview", "overview.html")


@require_GET
@require_role("viewer")
def servers(request: HttpRequest) -> HttpResponse:
    return servers_page(request)


def servers_page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    """The page of pods; ``lift_errors`` are of its form for silent pods."""
    kinds = (
        ("", "All"),
        ("local", "Local fallback"),
        ("drill", "Drill"),
        ("lag", "Old config"),
        ("silent", "Silent"),
        ("unhealthy", "Unhealthy"),
        ("shared", "Shared"),
    )
    may_lift = may(request.user, "lift_freeze", SHOWN)
    extra |= {"kinds": kinds, "may_lift": may_lift, "typed": request.POST}
    return show(request, "servers", "servers.html", status=status, **extra)


@require_GET
@require_role("viewer")
def bulkheads(request: HttpRequest) -> HttpResponse:
    return show(request, "bulkheads", "bulkheads.html")


@require_GET
@require_role("viewer")
def retries(request: HttpRequest) -> HttpResponse:
    return show(request, "retries", "retries.html")


@require_GET
@require_role("viewer")
def limits(request: HttpRequest) -> HttpResponse:
    return show(request, "limits", "limits.html")
