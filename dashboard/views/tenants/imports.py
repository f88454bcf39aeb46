"""A file of quotas: upload it, compare it, and apply it after a look at what it changes."""

from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.approvals.models import PENDING, ChangeRequest
from controlplane.editing.plans import MAX_BYTES, MAX_ROWS, drafting, export_csv, export_plan
from controlplane.editing.plans.difference import summary
from controlplane.editing.plans.drafting import FIRST
from controlplane.errors import InvalidEdit
from controlplane.policies.drafts import DraftState
from controlplane.policies.history import Changed
from controlplane.policies.models import Draft
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.views.page import HtmxHttpRequest, context_of, not_found
from dashboard.words.change_words import field_words
from dashboard.words.changed_items import ChangedItem, TiersAsOf, TiersWith, changed_items
from dashboard.words.labels import count_words

_LIST = 20


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def start(request: HtmxHttpRequest) -> HttpResponseBase:
    """The form, and the last few files."""
    errors: dict[str, list[str]] = {}
    if request.method == "POST":
        file = request.FILES.get("file")
        if file is None:
            errors = {"file": ["Choose a file."]}
        else:
            try:
                draft = drafting.upload(
                    environment=environment_in(request),
                    filename=file.name or "",
                    stream=file,
                    prune=request.POST.get("prune") == "1",
                    actor=actor_of(request),
                )
                return redirect("draft", draft.pk)
            except InvalidEdit as error:
                errors = error.errors
    rows = Draft.objects.filter(environment=environment_in(request)).defer("content", "difference", "errors")
    context = context_of(
        request,
        "import",
        rows=rows.order_by("-created_at")[:_LIST],
        errors=errors,
        most_rows=MAX_ROWS,
        most_mib=MAX_BYTES // 1024 // 1024,
    )
    return render(request, "dashboard/import.html", context, status=422 if errors else 200)


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def draft(request: HtmxHttpRequest, draft: UUID) -> HttpResponseBase:
    row = Draft.objects.filter(pk=draft, environment=environment_in(request)).first()
    if row is None:
        return not_found(request, "No such file", "Uploaded files are kept for a week.")
    if request.method != "POST":
        return _page(request, row)
    try:
        row = drafting.order(draft=row.pk, reason=request.POST.get("reason", ""), actor=actor_of(request))
    except InvalidEdit as error:
        return _page(request, row, refused=error.errors, status=422)
    hub.nudge()
    return redirect("draft", row.pk)


def _page(request: HtmxHttpRequest, row: Draft, *, status: int = 200, **extra: Any) -> HttpResponse:
    document: dict[str, Any] = row.difference or {}
    counts = {name: document.get(name, 0) for name in ("created", "changed", "removed")}
    context = {
        "draft": row,
        "summary": summary(counts) if any(counts.values()) else "",
        "kinds": [count_words(name, count) for name, count in document.get("by_kind", {}).items()],
        "things": _changed_items(row, document),
        "advice": document.get("advice", ()),
        "left_off": max(0, sum(counts.values()) - FIRST),
        "rows": document.get("rows", 0),
        "request_made": document.get("request"),
        "to_come": row.state != DraftState.APPLIED or _is_pending(document.get("request")),
        "reason": request.POST.get("reason", ""),
        **extra,
    }
    if request.htmx and request.method == "GET":
        return render(request, "dashboard/draft.html#job", context)
    return render(request, "dashboard/draft.html", context_of(request, "import") | context, status=status)


def _is_pending(number: int | None) -> bool:
    """Whether the change request of a file waits, so that nothing has changed yet."""
    return number is not None and ChangeRequest.objects.filter(pk=number, state__in=PENDING).exists()


def _changed_items(row: Draft, document: dict[str, Any]) -> list[ChangedItem]:
    tiers = TiersAsOf(row.environment, row.compared_with)
    if (first := document.get("first")) is not None:
        shown, others = ([Changed(**each) for each in part] for part in (first, document.get("tiers", ())))
        return changed_items(shown, tiers, TiersWith(tiers, [*shown, *others]))
    # Read by an earlier version, which kept only the fields that differ.
    return [
        ChangedItem(
            change["kind"],
            change["name"],
            change["what"],
            [field_words(field["field"], field["before"], field["after"]) for field in change["fields"]],
        )
        for change in document.get("changes", ())[:FIRST]
    ]


@require_GET
@require("export_configuration")
def export(request: HtmxHttpRequest, form: str) -> HttpResponseBase:
    """The whole configuration as YAML, or its tenants as CSV."""
    parts = export_csv(environment_in(request)) if form == "csv" else export_plan(environment_in(request))
    kind = "text/csv; charset=utf-8" if form == "csv" else "application/yaml; charset=utf-8"
    answer = StreamingHttpResponse(list(parts), content_type=kind)
    answer["Content-Disposition"] = (
        f"attachment; filename*=UTF-8''{quote(f'quotas-{environment_in(request)}.{form}')}"
    )
    answer["Cache-Control"] = "no-store"
    return answer
