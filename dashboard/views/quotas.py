"""The page of one tenant, with the form of a quota: shown, previewed and saved."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.editing.plans import plan_from_document
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.fleet.live import divisor
from controlplane.policies.effective import effective
from controlplane.policies.models import Template, Tenant, TenantQuota
from controlplane.schedules.edits import schedule_change
from controlplane.status.facts import Facts
from controlplane.usage.what_if import WhatIf, what_if, what_if_shadow
from dashboard.hub import hub
from dashboard.limit_forms import QuotaForm
from dashboard.live.tenant import QuotaRow, find_tenant, quota_rows
from dashboard.live.tenant_parents import members, parents
from dashboard.reader import actor_of
from dashboard.views.outage import outage_words
from dashboard.views.page import HtmxHttpRequest, context_of, text_parameter
from dashboard.views.quota_fields import conflict_of, quota_fields
from dashboard.views.unregistered import unregistered_page
from fuseboard.contract.limit_fields import NUMBERS


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def tenant(request: HtmxHttpRequest) -> HttpResponseBase:
    """Show one tenant, with the form of the quota chosen in the address, or save that form."""
    if request.method == "POST":
        return require_role("admin")(_edit)(request)
    return _page(request)


@require_POST
@require("edit_quota")
def quota_preview(request: HtmxHttpRequest) -> HttpResponse:
    """Replay the last seven days with the quota in the form. Nothing is written."""
    key, form = text_parameter(request, "key"), QuotaForm(request.POST)
    found = outage = None
    # The form reports an incomplete number when it is sent.
    if not any(each.name in form.errors for each in form.described):
        try:
            document = quota_document(key, request.POST.get("quota", ""), form.columns())
            found = what_if(environment_in(request), plan_from_document(document))
        except InvalidEdit:
            found = None
        else:
            outage = _outage_of(environment_in(request), key, request.POST.get("quota", ""), form.columns())
    context = {"whatif": found, "peak_at": peak_at(found) if found else None, "outage": outage}
    return render(request, "dashboard/quota_form.html#whatif_text", context)


@require_GET
@require_role("viewer")
def effective_values(request: HtmxHttpRequest) -> HttpResponse:
    """Show every value that decides about a tenant's requests, and where it comes from."""
    key = text_parameter(request, "key")
    context = context_of(
        request, "tenants", key=key, tenant_key=key, values=effective(environment_in(request), key)
    )
    return render(request, "dashboard/effective.html", context)


def _outage_of(environment: str, key: str, quota: str, typed: dict[str, Any]) -> str | None:
    """What the quota in the form allows while Redis is down."""
    row = find_tenant(environment, key)
    current = next((each for each in quota_rows(row, {}) if each.name == quota), None) if row else None
    return (
        outage_words(environment, {**current.columns, **typed}, pods=divisor(environment))
        if current
        else None
    )


def quota_document(key: str, quota: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Return a plan of one quota of one tenant."""
    return {"tenants": {key: {"quotas": {quota: columns}}}}


def peak_at(found: WhatIf) -> datetime | None:
    return datetime.fromtimestamp(found.peak_at, UTC) if found.peak_at is not None else None


def _edit(request: HtmxHttpRequest) -> HttpResponse:
    removes = request.POST.get("remove") == "1"
    form = QuotaForm(request.POST)
    if removes:
        # The tier's values take over, so only the reason counts.
        for name in NUMBERS:
            form.fields[name].required = False
    if not form.is_valid():
        return _page(request, form=form, status=422)
    try:
        if removes:
            return _remove(request, form)
        if form.cleaned_data["starts"]:
            return _schedule(request, form)
        return _save(request, form)
    except InvalidEdit as error:
        for field, found in error.errors.items():
            form.add_error(field if field in form.fields else None, found)
        return _page(request, form=form, status=422)
    except EditConflict as conflict:
        return _page(request, form=form, conflict=conflict, status=409)
    except NotFound as missing:
        form.add_error(None, str(missing))
        return _page(request, form=form, status=409)


def _save(request: HtmxHttpRequest, form: QuotaForm) -> HttpResponse:
    common = _common(request, form)
    revision = edits.set_tenant_quota(
        **_columns(environment_in(request), common["tenant"], form),
        expires_at=form.cleaned_data["ends"],
        **common,
    )
    return _saved(request, f"{common['quota']} is saved as revision {revision}.", _address(common))


def _remove(request: HtmxHttpRequest, form: QuotaForm) -> HttpResponse:
    common = _common(request, form)
    revision = edits.remove_tenant_quota(**common)
    done = f"{common['quota']} uses the tier quota again as of revision {revision}."
    return _saved(request, done, _address(common))


def _schedule(request: HtmxHttpRequest, form: QuotaForm) -> HttpResponse:
    """Make the same edit later. It is checked now and again when it is due."""
    data, key = form.cleaned_data, text_parameter(request, "key")
    columns = _columns(environment_in(request), key, form)
    if data["ends"]:
        columns["expires_at"] = data["ends"].isoformat()
    try:
        schedule_change(
            environment=environment_in(request),
            due_at=data["starts"],
            document=quota_document(key, data["quota"], columns),
            reason=data["reason"],
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        found = {"starts" if field == "due_at" else field: texts for field, texts in error.errors.items()}
        raise InvalidEdit(found) from error
    done = f"{data['quota']} will be changed at {data['starts']:%-d %B %H:%M} UTC. See Schedules."
    return _saved(request, done, reverse("schedules"))


def _common(request: HtmxHttpRequest, form: QuotaForm) -> dict[str, Any]:
    data = form.cleaned_data
    return {
        "environment": environment_in(request),
        "tenant": text_parameter(request, "key"),
        "quota": data["quota"],
        "expected_version": data["version"],
        "reason": data["reason"],
        "actor": actor_of(request),
    }


def _columns(environment: str, key: str, form: QuotaForm) -> dict[str, Any]:
    """Return what was typed. In a quota that follows a template, only values that differ from the present.

    So only these override the template.
    """
    typed, quota = form.columns(), form.cleaned_data["quota"]
    rows = TenantQuota.objects.filter(tenant__environment=environment, tenant__key=key, name=quota)
    row = rows.exclude(template="").first()
    return {name: value for name, value in typed.items() if row is None or getattr(row, name) != value}


def _saved(request: HtmxHttpRequest, done: str, address: str) -> HttpResponse:
    hub.nudge()
    if request.htmx:
        return _page(request, done=done)
    messages.success(request, done)
    return redirect(address)


def _address(common: dict[str, Any]) -> str:
    return f"{reverse('tenant')}?{urlencode({'key': common['tenant'], 'quota': common['quota']})}"


def _page(
    request: HtmxHttpRequest,
    *,
    form: QuotaForm | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
    done: str = "",
) -> HttpResponse:
    context = context_of(request, "tenant", key=text_parameter(request, "key"))
    row: Tenant | None = context["tenant"]
    if row is None:
        return unregistered_page(request, text_parameter(request, "key"), status=status)
    asked = form.data.get("quota", "") if form else request.GET.get("quota", "")
    current = _chosen(context["quotas"], asked)
    context |= {
        "parents": parents(row),
        "members": members(row),
        "done": done,
        "conflict": conflict_of(conflict, form, current) if conflict else None,
    }
    if current is not None:
        # After a conflict the next save is based on their version, knowingly. After a mistake it is not.
        version = form.data.get("version", "") if form and status == 422 else row.version
        editor = _editor(row, current, form or QuotaForm(), context["live"].facts)
        context |= editor | {"form_version": version}
    fragment = "#editor" if request.method == "POST" and request.htmx else ""
    return render(request, f"dashboard/tenant.html{fragment}", context, status=status)


def _chosen(quotas: list[QuotaRow], name: str) -> QuotaRow | None:
    return next((row for row in quotas if row.name == name), quotas[0] if quotas else None)


def _editor(row: Tenant, current: QuotaRow, form: QuotaForm, facts: Facts) -> dict[str, Any]:
    """Return what the form of one quota shows."""
    templates = Template.objects.filter(environment=row.environment_id).order_by("name")
    ends = [own.expires_at for own in row.quotas.all() if own.name == current.name]
    return {
        "form": form,
        "selected": current.name,
        "current": current,
        "fields": quota_fields(form, current),
        "templates": list(templates.values_list("name", flat=True)),
        "ends_at": ends[0] if ends else None,
        "outage": outage_words(row.environment_id, current.columns, pods=facts.divisor),
        "promotion": what_if_shadow(row.environment_id, row.key, current.name) if current.shadow else None,
    }
