from dataclasses import dataclass
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.fleet.live import TenantFigures
from controlplane.policies.models import Environment, Tenant, Tier
from controlplane.policies.tenant_search import first_tenants, search_tenants
from controlplane.status.read_facts import read_pods
from dashboard.live.known import no_data_words
from dashboard.tables.list_filters import as_query
from dashboard.tables.table_files import rows_drawn
from dashboard.views.page import HtmxHttpRequest, context_of, names_of, text_parameter
from dashboard.views.tenants.bulk import MAX_SELECTED

_PER_PAGE = 50
_STATES = (("", "Any state"), ("active", "Active"), ("suspended", "Suspended"))


@dataclass(frozen=True, kw_only=True)
class TenantLine:
    key: str
    title: str
    tier: str
    own: str
    suspended: bool
    requests: float
    refused: float

    @property
    def editor(self) -> str:
        """The address of its editor: the tier, and whether it is suspended."""
        return reverse("edit", args=["tenant"], query={"key": self.key})


@require_GET
@require_role("viewer")
def tenants(request: HtmxHttpRequest) -> HttpResponse:
    """A page of tenants, searched and paged by Postgres: there may be 100,000."""
    query, tier = text_parameter(request, "q").strip(), text_parameter(request, "tier", most=64)
    everybody = Tenant.objects.filter(environment=environment_in(request), deleted=False)
    rows = search_tenants(everybody, query) if query else everybody
    rows = rows.filter(tier__name=tier) if tier else rows
    parent = text_parameter(request, "parent")
    rows = rows.filter(parent=parent) if parent else rows
    state = text_parameter(request, "state", most=16)
    rows = rows.filter(suspended=state == "suspended") if state in dict(_STATES) and state else rows
    down = text_parameter(request, "sort", most=16) == "-tenant"
    after, before = (text_parameter(request, name) for name in ("after", "before"))
    shown, earlier, later = _part(rows, after, before, rows_drawn(request, _PER_PAGE), down=down)
    facts = read_pods(environment_in(request))
    context = context_of(request, "tenants", here=facts, no_data=no_data_words(facts))
    traffic = {row.tenant: row for row in facts.figures.tenants}
    given = (("q", query), ("tier", tier), ("parent", parent), ("state", state))
    filters = {name: value for name, value in given if value}
    kept = filters | ({"sort": "-tenant"} if down else {})
    default = (
        Environment.objects.filter(slug=environment_in(request))
        .values_list("default_tier__name", flat=True)
        .first()
    )
    context |= {
        "rows": [_line(row, traffic) for row in shown],
        "query": query,
        "tier": tier,
        "parent": parent,
        "state": state,
        "states": _STATES,
        "most_selected": MAX_SELECTED,
        "filtered": bool(filters),
        "down": down,
        "order_link": as_query(filters, sort="" if down else "-tenant"),
        "tiers": list(names_of(Tier, environment_in(request))),
        "default_tier": default or "none",
        # Counting costs as much as searching, so count only when nothing is searched for.
        "total": None if filters else everybody.count(),
        "earlier": shown[0].key if shown and earlier else "",
        "later": shown[-1].key if shown and later else "",
        "whole": not (earlier or later),
        "params": f"{urlencode(kept)}&" if kept else "",
    }
    return render(request, "dashboard/tenants.html", context)


def _part(
    rows: QuerySet[Tenant], after: str, before: str, most: int, *, down: bool
) -> tuple[list[Tenant], bool, bool]:
    """One page after or before an id, and whether there are earlier and later ones.

    By id, not by number: so the last page of 100,000 tenants costs as much as the first.
    """
    later, earlier = ("lt", "gt") if down else ("gt", "lt")
    order, back = ("-key", "key") if down else ("key", "-key")
    if before:
        found = _first(rows.filter(**{f"key__{earlier}": before}), back, most)
        return found[:most][::-1], len(found) > most, True
    found = _first(rows.filter(**{f"key__{later}": after}) if after else rows, order, most)
    return found[:most], bool(after), len(found) > most


def _first(rows: QuerySet[Tenant], order: str, most: int) -> list[Tenant]:
    """Read as many tenants as a page has, and one more."""
    return list(first_tenants(rows, order, most + 1).prefetch_related("quotas"))


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
