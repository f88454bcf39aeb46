from collections.abc import Mapping

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.fleet.older_agents import dividing_words, ignored_words
from controlplane.policies.breaker_advice import advice_about
from controlplane.policies.fields import dependency_fields
from controlplane.policies.latency_advice import advice_about_latency
from controlplane.policies.models import Dependency
from controlplane.policies.newer_settings import SHARED_SLOTS, newer_settings
from controlplane.policies.older_defaults import differing_rows, divided_bulkheads
from dashboard.edit_form import EditForm, Errors, run_edit
from dashboard.views.page import show

#: The API lists more.
_SHOWN = 200


@require_GET
@require_role("viewer")
def defaults(request: HttpRequest) -> HttpResponse:
    """Rows that differ from the current defaults."""
    return _page(request)


class ShareIdleSlotsForm(EditForm):
    def save(self) -> int:
        return edits.share_idle_slots(**self.given)


@require_POST
@require("edit_breaker_policy")
def share_idle_slots(request: HttpRequest) -> HttpResponse:
    """Give every bulkhead of an earlier version the default of a new one."""
    return run_edit(ShareIdleSlotsForm(request), page=_page, then="defaults")


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, str] | None = None,
    errors: Errors | None = None,
    status: int = 200,
) -> HttpResponse:
    rows = (
        Dependency.objects.filter(environment=environment_in(request))
        .order_by("name")
        .prefetch_related("vendor_limits")
    )
    return show(
        request,
        "templates",
        "defaults.html",
        differing=differing_rows(environment_in(request), most=_SHOWN),
        most=_SHOWN,
        divided=divided_bulkheads(environment_in(request)),
        older_pods=_older_pods(environment_in(request)),
        errors=errors,
        typed=typed,
        status=status,
        advice=[(row.name, text) for row in rows for text in _advice(row)][:_SHOWN],
    )


def _advice(row: Dependency) -> list[str]:
    fields = dependency_fields(row)
    return [*advice_about(fields), *advice_about_latency(row, fields)]


def _older_pods(environment: str) -> list[str]:
    """Settings that live pods of earlier versions do not apply."""
    others = [one for one in newer_settings(environment) if one != SHARED_SLOTS]
    has_bulkheads = Dependency.objects.filter(environment=environment, protection__has_key="bulkhead")
    found = [
        dividing_words(environment) if has_bulkheads.exists() else "",
        ignored_words(environment, others),
    ]
    return [text for text in found if text]
