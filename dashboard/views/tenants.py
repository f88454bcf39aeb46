from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import SHOWN, require_role
from controlplane.editing import edits
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.fleet.live import TenantFigures
from controlplane.policies.models import Environment, Template, Tenant, TenantQuota, Tier
from controlplane.policies.searching import first_tenants, search_tenants
from controlplane.schedules.edits import schedule_change
from controlplane.usage.what_if import what_if_shadow
from dashboard.forms import QuotaForm
from dashboard.hub import hub
from dashboard.live.tenant import QuotaRow
from dashboard.live.tenant_parents import members, parents
from dashboard.reader import actor_of
from dashboard.views.page import HtmxHttpRequest, context_of, not_found, text_parameter
from dashboard.views.quota_fields import conflict_of, quota_fields
from dashboard.views.quotas import quota_document

_PER_PAGE = 50
_SHADOW = {"yes": True, "no": False}


@dataclass(frozen=True, kw_only=True)
class TenantLine:
    key: str
    title: str
    tier: str
    own: str
    suspended: bool
    requests: float
    refused: float


@require_GET
@require_role("viewer")
def tenants(request: HtmxHttpRequest) -> HttpResponse:
    """A page of tenants, searched and paged by Postgres: there may be 100,000."""
    query, tier = text_parameter(request, "q").strip(), text_parameter(request, "tier", most=64)
    everybody = Tenant.objects.filter(environment=SHOWN, deleted=False)
    rows = search_tenants(everybody, query) if query else everybody
    rows = rows.filter(tier__name=tier) if tier else rows
    parent = text_parameter(request, "parent")
    rows = rows.filter(parent=parent) if parent else rows
    after, before = (text_parameter(request, name) for name in ("after", "before"))
    shown, earlier, later = _part(rows, after, before)
    context = context_of(request, "tenants")
    traffic = {row.tenant: row for row in context["live"].facts.figures.tenants}
    kept = {name: value for name, value in (("q", query), ("tier", tier), ("parent", parent)) if value}
    default = Environment.objects.filter(slug=SHOWN).values_list("default_tier__name", flat=True).first()
    context |= {
        "rows": [_line(row, traffic) for row in shown],
        "query": query,
        "tier": tier,
        "parent": parent,
        "tiers": list(Tier.objects.filter(environment=SHOWN).order_by("name").values_list("name", flat=True)),
        "default_tier": default or "none",
        # Counting costs as much as searching: only where nothing is searched for.
        "total": None if kept else everybody.count(),
        "earlier": shown[0].key if shown and earlier else "",
        "later": shown[-1].key if shown and later else "",
        "whole": not (earlier or later),
        "params": f"{urlencode(kept)}&" if kept else "",
    }
    return render(request, "dashboard/tenants.html", context)


def _part(rows: QuerySet[Tenant], after: str, before: str) -> tuple[list[Tenant], bool, bool]:
    """One page after or before an id, and whether there are earlier and later ones.

    By id, not by number: the last page of 100,000 tenants costs what the first does.
    """
    if before:
        found = _first(rows.filter(key__lt=before), "-key")
        return found[:_PER_PAGE][::-1], len(found) > _PER_PAGE, True
    found = _first(rows.filter(key__gt=after) if after else rows, "key")
    return found[:_PER_PAGE], bool(after), len(found) > _PER_PAGE


def _first(rows: QuerySet[Tenant], order: str) -> list[Tenant]:
    """As many as a page has and one more."""
    return list(first_tenants(rows, order, _PER_PAGE + 1).prefetch_related("quotas"))


def _line(row: Tenant, traffic: dict[str, TenantFigures]) -> TenantLine:
    figures = traffic.get(row.key)
    return TenantLine(
        key=row.key,
        title=row.title,
        tier=row.tier.name,
        own=", ".join(quota.name for quota in row.quotas.all()),
        suspended=row.suspended,
        requests=figures.requests_per_s if figures else 0.0,
        refused=figures.refused_per_s if figures else 0.0,
    )


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def tenant(request: HtmxHttpRequest) -> HttpResponseBase:
    """One tenant, and the form of the quota chosen in the address."""
    if request.method == "POST":
        return require_role("admin")(_edit)(request)
    return _page(request)


def _edit(request: HtmxHttpRequest) -> HttpResponse:
    key = text_parameter(request, "key")
    data, removes = request.POST.copy(), request.POST.get("remove") == "1"
    form = QuotaForm(data)
    if removes:
        # Only the reason counts: the tier's figures take over.
        for name in ("limit", "window_s", "burst"):
            form.fields[name].required = False
    if not form.is_valid():
        return _page(request, form=form, status=422)
    try:
        if form.cleaned_data["starts"] and not removes:
            return _schedule(request, key, form)
        revision = _save(request, key, form, removes=removes)
    except InvalidEdit as error:
        for field, found in error.errors.items():
            form.add_error(field if field in form.fields else None, found)
        return _page(request, form=form, status=422)
    except EditConflict as conflict:
        return _page(request, form=form, conflict=conflict, status=409)
    except NotFound as missing:
        form.add_error(None, str(missing))
        return _page(request, form=form, status=409)
    hub.nudge()
    quota = form.cleaned_data["quota"]
    said = f"{quota} is the tier\u2019s again" if removes else f"{quota} is saved"
    said += f" as revision {revision}."
    if request.htmx:
        return _page(request, done=said)
    messages.success(request, said)
    return redirect(f"{reverse('tenant')}?{urlencode({'key': key, 'quota': quota})}")


def _save(request: HtmxHttpRequest, key: str, form: QuotaForm, *, removes: bool) -> int:
    data = form.cleaned_data
    common: dict[str, Any] = {
        "environment": SHOWN,
        "tenant": key,
        "quota": data["quota"],
        "expected_version": data["version"],
        "reason": data["reason"],
        "actor": actor_of(request),
    }
    if removes:
        return edits.remove_tenant_quota(**common)
    return edits.set_tenant_quota(**_columns(key, data), expires_at=data["ends"], **common)


def _columns(key: str, data: dict[str, Any]) -> dict[str, Any]:
    """What was typed; of a quota that follows a template only what is different, to become its own."""
    typed = {
        "limit": data["limit"],
        "window_s": data["window_s"],
        "burst": data["burst"] or 1,
        "shadow": _SHADOW.get(data["shadow"]),
        "reserved_percent": data["reserved_percent"],
    }
    columns = {name: value for name, value in typed.items() if value is not None}
    own = TenantQuota.objects.filter(tenant__environment=SHOWN, tenant__key=key, name=data["quota"])
    row = own.exclude(template="").first()
    return {name: value for name, value in columns.items() if row is None or getattr(row, name) != value}


def _schedule(request: HtmxHttpRequest, key: str, form: QuotaForm) -> HttpResponse:
    """The same edit, made later; checked now and then."""
    data = form.cleaned_data
    columns = _columns(key, data)
    if data["ends"]:
        columns["expires_at"] = data["ends"].isoformat()
    try:
        schedule_change(
            environment=SHOWN,
            due_at=data["starts"],
            document=quota_document(key, data["quota"], columns),
            reason=data["reason"],
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        found = {"starts" if field == "due_at" else field: texts for field, texts in error.errors.items()}
        raise InvalidEdit(found) from error
    hub.nudge()
    said = f"{data['quota']} will be changed at {data['starts']:%-d %B %H:%M} UTC. See Schedules."
    if request.htmx:
        return _page(request, done=said)
    messages.success(request, said)
    return redirect("schedules")


def _page(
    request: HtmxHttpRequest,
    *,
    form: QuotaForm | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
    done: str = "",
) -> HttpResponse:
    key = text_parameter(request, "key")
    context = context_of(request, "tenant", key=key)
    if context["tenant"] is None:
        return not_found(
            request, "No such tenant", "Nobody is registered by that id: the default tier applies."
        )
    context |= {"parents": parents(context["tenant"]), "members": members(context["tenant"])}
    quotas: list[QuotaRow] = context["quotas"]
    asked = form.data.get("quota", "") if form else request.GET.get("quota", "")
    current = next((row for row in quotas if row.name == asked), quotas[0] if quotas else None)
    if current is not None:
        form = form or QuotaForm()
        context |= {
            "form": form,
            "selected": current.name,
            "current": current,
            "fields": quota_fields(form, current),
            "shadow": form.data.get("shadow") or ("yes" if current.shadow else "no"),
            "templates": list(
                Template.objects.filter(environment=SHOWN).order_by("name").values_list("name", flat=True)
            ),
            "ends_at": _ends_at(context["tenant"], current.name),
            "promotion": what_if_shadow(SHOWN, key, current.name) if current.shadow else None,
            # After a conflict the next save is against theirs, knowingly.
            "form_version": context["tenant"].version if status != 422 else form.data.get("version", ""),
        }
    context |= {"done": done, "conflict": conflict_of(conflict, form, current) if conflict else None}
    template = "tenant.html#editor" if request.htmx and request.method == "POST" else "tenant.html"
    return render(request, f"dashboard/{template}", context, status=status)


def _ends_at(tenant: Tenant, quota: str) -> datetime | None:
    return next((own.expires_at for own in tenant.quotas.all() if own.name == quota), None)
