from typing import Any
from urllib.parse import urlencode

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import SHOWN, may, require_role
from controlplane.policies.models import Tenant
from dashboard.runbooks import every_runbook
from dashboard.views.page import current_live, show

#: How many tenants the palette offers by name; the search of the tenants page finds the rest.
_PALETTE_TENANTS = 200


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


@require_GET
@require_role("viewer")
def palette(request: HttpRequest) -> JsonResponse:
    """Everything that the palette can open, worst first."""
    live = current_live()
    entries = [
        _entry(
            b.name,
            f"Breaker, {b.face.word.lower()}",
            reverse("breaker", args=[b.name]),
            b.face.kind,
            b.face.css,
        )
        for b in live.breakers
    ]
    entries += [_entry(name, "Page", reverse(view), "ok") for view, name in _pages(request)]
    entries += [
        _entry(
            row.name,
            f"Pod, {row.word.lower()}",
            reverse("server", args=[row.name]),
            "warn" if row.troubled else "ok",
            row.css,
        )
        for row in live.fleet.rows
    ]
    entries += [
        _entry(book.title, "Runbook", reverse("runbook", args=[book.slug]), "warn")
        for book in every_runbook()
    ]
    tenant = reverse("tenant")
    for key in _tenants(live.facts.environment):
        entries.append(_entry(key, "Tenant quotas", f"{tenant}?{urlencode({'key': key})}", "human"))
    return JsonResponse({"entries": entries})


def _tenants(environment: str) -> list[str]:
    keys = Tenant.objects.filter(environment=environment, deleted=False).order_by("key")
    try:
        return list(keys.values_list("key", flat=True)[:_PALETTE_TENANTS])
    except (OperationalError, InterfaceError):
        return []  # Their pages need Postgres too.


def _pages(request: HttpRequest) -> tuple[tuple[str, str], ...]:
    asked = (page for page, permission in _PAGES_ON_REQUEST if may(request.user, permission))
    return (*_PAGES, ("account", "Your account"), *asked)


_PAGES = (
    ("overview", "Overview"),
    ("breakers", "Breakers"),
    ("bulkheads", "Bulkheads"),
    ("retries", "Retries"),
    ("limits", "Rate limits"),
    ("servers", "Pods"),
    ("tenants", "Tenants"),
    ("tiers", "Tiers"),
    ("templates", "Templates"),
    ("defaults", "Current defaults"),
    ("revisions", "Revisions"),
    ("requests", "Change requests"),
    ("schedules", "Schedules"),
    ("audit", "Audit"),
    ("explain", "Explain a refusal"),
    ("runbooks", "Runbooks"),
)
_PAGES_ON_REQUEST = (
    (("bulk", "Bulk edit tenants"), "edit_quota"),
    (("import", "Import a file"), "edit_quota"),
    (("pod_protection", "Protection of pods"), "edit_breaker_policy"),
    (("drills", "Drills"), "run_drills"),
    (("people", "People"), "manage_people"),
    (("tokens", "Tokens"), "manage_tokens"),
)


def _entry(name: str, hint: str, href: str, glyph: str, css: str = "") -> dict[str, str]:
    return {"name": name, "hint": hint, "href": href, "glyph": glyph, "css": css}
