from datetime import UTC, datetime
from urllib.parse import urlencode

from django.core.handlers.asgi import ASGIRequest
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.by_person import by_person, with_authors
from controlplane.accounts.permissions import environment_in, may, reads_of_people, require, require_role
from controlplane.audit.export import CONTENT_TYPES, Format, aexport, export
from controlplane.audit.models import Entry
from controlplane.status.read_facts import change_of
from dashboard.forms import sent_number
from dashboard.live.change_lines import line_of
from dashboard.tables.list_filters import PERIODS, given_filters, in_period
from dashboard.views.history.logged import logged_entries
from dashboard.views.history.tabs import change_tabs
from dashboard.views.page import context_of, owned_by

_PER_PAGE = 60
_KINDS = ("dependency", "tenant", "tier", "environment", "token", "user")
_MAKERS = (("", "All"), ("people", "People"), ("programs", "API and system"), ("sql", "Direct SQL"))
_ORIGINS = (("", "Any source"), ("form", "Dashboard"), ("api", "API"), ("command", "Command line"))
_FILES: dict[str, Format] = {"csv": "csv", "jsonl": "jsonl"}


@require_GET
@require_role("viewer")
def audit(request: HttpRequest) -> HttpResponse:
    """The audit, filtered by the parameters in the address."""
    filters = _filters(request)
    rows = _filtered(_chains(request), filters)
    if (before := sent_number(request.GET.get("before", ""), -1)) >= 0:
        rows = rows.filter(pk__lt=before)
    shown = with_authors(rows).order_by("-id")[: _PER_PAGE + 1]
    entries = [line_of(change_of(row)) for row in shown]
    more, entries = len(entries) > _PER_PAGE, entries[:_PER_PAGE]
    newest = Entry.objects.order_by("-id").values_list("pk", flat=True).first() or 0
    context = context_of(request, "audit", key=str(newest))
    context["own_dependencies"] = owned_by(environment_in(request), context["administered"])
    context |= {
        "tabs": change_tabs(request, "audit"),
        "lines": logged_entries(environment_in(request), entries),
        "query": filters.get("q", ""),
        "period": filters.get("period", ""),
        "periods": PERIODS,
        "kind": filters.get("kind", ""),
        "kinds": _KINDS,
        "by": filters.get("by", ""),
        "makers": [(key, word, _with(filters, by=key)) for key, word in _MAKERS],
        "filtered": bool(filters),
        "here": _with(filters),
        "origins": _ORIGINS,
        "origin": filters.get("origin", ""),
        "actor": filters.get("actor", ""),
        "files": _links(filters) if may(request.user, "export_audit", environment_in(request)) else [],
        "older": _with(filters, before=str(entries[-1].id)) if more else "",
    }
    return render(request, "dashboard/audit.html", context)


@require_GET
@require("export_audit")
def audit_export(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """The entries of the page as a file, oldest first."""
    kind = _FILES.get(request.GET.get("format", ""))
    if kind is None:
        return HttpResponse("format must be csv or jsonl", status=400, content_type="text/plain")
    rows = _filtered(_chains(request), _filters(request))
    # A WSGI server streams plain iterators, an ASGI server asynchronous ones.
    pieces = aexport(rows, kind) if isinstance(request, ASGIRequest) else export(rows, kind)
    name = f"audit-{environment_in(request)}-{datetime.now(UTC):%Y-%m-%d}.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingHttpResponse(pieces, content_type=CONTENT_TYPES[kind], headers=headers)


def _links(filters: dict[str, str]) -> list[tuple[str, str]]:
    """Kind of file -> its address."""
    here = reverse("audit_export")
    return [(kind, f"{here}?{urlencode({**filters, 'format': kind})}") for kind in _FILES]


def _filters(request: HttpRequest) -> dict[str, str]:
    return given_filters(request, "q", "period", "kind", "by", "origin", "actor")


def _with(filters: dict[str, str], **changed: str) -> str:
    kept = {name: value for name, value in {**filters, **changed}.items() if value}
    return f"{reverse('audit')}?{urlencode(kept)}" if kept else reverse("audit")


def _chains(request: HttpRequest) -> list[str]:
    """This environment, and the entries of people, who belong to none."""
    return [environment_in(request), *([""] if reads_of_people(request.user) else [])]


def _filtered(environments: list[str], filters: dict[str, str]) -> QuerySet[Entry]:
    rows = Entry.objects.filter(environment__in=environments)
    if query := filters.get("q"):
        rows = rows.filter(
            Q(target_name__icontains=query)
            | Q(actor__icontains=query)
            | Q(owner__icontains=query)
            | Q(token=query)
            | Q(request_id=query)
            | Q(trace_id=query)
            | Q(reason__icontains=query)
            | Q(action__icontains=query)
            | Q(**{"after__override.ticket__icontains": query})
        )
    rows = in_period(rows, filters, "at")
    for name, column in (("kind", "target_kind"), ("origin", "origin"), ("actor", "actor")):
        if name in filters:
            rows = rows.filter(**{column: filters[name]})
    people, sql = by_person(), Q(origin="sql")
    chosen = {
        "people": rows.filter(people),
        "programs": rows.exclude(people | sql),
        "sql": rows.filter(sql),
    }
    return chosen.get(filters.get("by", ""), rows)
