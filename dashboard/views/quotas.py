"""A quota before it is saved: what it would have refused; and everything that holds for a tenant."""

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.permissions import SHOWN, require, require_role
from controlplane.editing.plans import plan_from_document
from controlplane.errors import InvalidEdit
from controlplane.policies.effective import effective
from controlplane.usage.what_if import WhatIf, what_if
from dashboard.views.page import context_of, text_parameter

#: Columns of a limit that the form has.
_COLUMNS = ("limit", "window_s", "burst")


@require_POST
@require("edit_quota")
def quota_preview(request: HttpRequest) -> HttpResponse:
    """The last seven days, had the quota in the form held; nothing is written."""
    typed = request.POST
    key, quota = text_parameter(request, "key"), typed.get("quota", "")
    columns: dict[str, Any] = {
        name: int(typed[name])
        for name in _COLUMNS
        if typed.get(name, "").isascii() and typed.get(name, "").isdigit() and len(typed[name]) < 12
    }
    if typed.get("shadow") in ("yes", "no"):
        columns["shadow"] = typed["shadow"] == "yes"
    try:
        found = what_if(SHOWN, plan_from_document(quota_document(key, quota, columns)))
    except InvalidEdit:
        # The form says it when it is sent; half a number is no mistake yet.
        return render(request, "dashboard/tenant.html#whatif_text", {"whatif": None})
    return render(request, "dashboard/tenant.html#whatif_text", {"whatif": found, "peak_at": peak_at(found)})


def quota_document(key: str, quota: str, columns: dict[str, Any]) -> dict[str, Any]:
    """One quota of one tenant, as a plan."""
    return {"tenants": {key: {"quotas": {quota: columns}}}}


def peak_at(found: WhatIf) -> datetime | None:
    return datetime.fromtimestamp(found.peak_at, UTC) if found.peak_at is not None else None


@require_GET
@require_role("viewer")
def effective_values(request: HttpRequest) -> HttpResponse:
    """Every value that decides about a tenant's requests, and where it stands."""
    key = text_parameter(request, "key")
    context = context_of(request, "tenants", key=key, tenant_key=key, values=effective(SHOWN, key))
    return render(request, "dashboard/effective.html", context)
