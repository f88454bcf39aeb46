"""The entries of the command palette, as data: only what the role of the reader permits.

The browser combines verbs with breakers, matches what is typed, and opens pages. Nothing is written here:
a command that changes something opens its form, filled in.
"""

from typing import Any
from urllib.parse import urlencode

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, may, may_for_some, require_role
from controlplane.page_addresses import home_of
from controlplane.policies.models import DescriptorFile, Tenant, Tier
from controlplane.policies.tenant_search import first_tenants, search_tenants
from controlplane.spending.budget_rows import Budget
from dashboard.environments import environments_of
from dashboard.live.breakers import Breaker
from dashboard.live.overview import Live
from dashboard.navigation import PageLink, entries_for
from dashboard.reader import reader_of
from dashboard.tables.saved_views import views_of
from dashboard.views.breakers.override_form import OverrideForm
from dashboard.views.page import current_live, names_of, text_parameter
from dashboard.views.runbooks.runbook_texts import every_runbook

#: Tenants per answer. The search of the tenants page finds the rest.
_TENANTS = 8
_SHORTEST_SEARCH = 2
#: Tiers, and budgets, offered by name.
_MAX_NAMED = 200

Entry = dict[str, Any]


@require_GET
@require_role("viewer")
def palette(request: HttpRequest) -> JsonResponse:
    """Every command of the reader, worst first; with ``tenants``, only the tenants that match it."""
    if "tenants" in request.GET:
        found = _tenants(request, text_parameter(request, "tenants").strip())
        return JsonResponse({"entries": found})
    live = current_live(environment_in(request))
    entries = [
        *(_breaker(row, request) for row in live.breakers),
        *_pages(request),
        *_views(request),
        *_commands(request),
        *_pods(live),
        *_named(request),
        *_domains(request),
        *(
            _entry(f"runbook:{book.slug}", book.title, "Runbook", reverse("runbook", args=[book.slug]))
            for book in every_runbook()
        ),
    ]
    return JsonResponse({"entries": entries, "verbs": _verbs(request)})


def _entry(
    key: str, name: str, hint: str, href: str = "", *, glyph: str = "ok", css: str = "", **more: Any
) -> Entry:
    return {"id": key, "name": name, "hint": hint, "href": href, "glyph": glyph, "css": css, **more}


def _form(key: str, name: str, address: str, also: str) -> Entry:
    """A form. It changes something, so that only whole beginnings of its words find it."""
    return _entry(key, name, "Opens the form", address, glyph="human", also=also)


def _breaker(row: Breaker, request: HttpRequest) -> Entry:
    """A breaker. ``now`` puts it into the list before anything is typed. A verb applies to it if the breaker
    has what the verb needs: ``operated`` and ``edited`` by the reader, and an ``override`` to change.
    """
    where, owner = environment_in(request), row.dependency.owner
    operated = may(request.user, "override_breaker", where, service=owner)
    return _entry(
        f"breaker:{row.name}",
        row.name,
        f"Breaker, {row.face.word.lower()}",
        reverse("breaker", args=[row.name]),
        glyph=row.face.kind,
        css=row.face.css,
        now=row.state != "closed" or row.override is not None,
        operated=operated,
        edited=may(request.user, "edit_breaker_policy", where, service=owner),
        override=operated and row.override is not None,
        object=row.name,
    )


def _verbs(request: HttpRequest) -> list[Entry]:
    """The actions for a breaker: the browser puts its name behind each.

    ``needs`` is the override that the action changes; ``lasts`` are the durations that the form offers.
    """
    able = {"automatic": "end_override", "reset": "reset_breaker"}
    verbs = [
        {
            "id": act,
            "name": word,
            "also": " ".join(_ALSO[act]),
            "hint": "Opens the form",
            "query": urlencode({"act": act}),
            "fragment": "override",
            "glyph": "human",
            "needs": "override" if act in ("extend", "automatic") else "operated",
            "lasts": _lasts(act),
        }
        for act, word in OverrideForm.ACTS
        if may_for_some(request.user, able.get(act, "override_breaker"), environment_in(request))
    ]
    if may_for_some(request.user, "edit_breaker_policy", environment_in(request)):
        verbs.append(
            {
                "id": "settings",
                "name": "Edit settings of",
                "also": "policy threshold timeout bulkhead retry vendor limit",
                "hint": "Opens the form",
                "needs": "edited",
                "path": "/settings",
                "glyph": "human",
            }
        )
    return verbs


def _lasts(act: str) -> list[int]:
    if act in ("automatic", "reset"):
        return []
    return [int(key) for key in OverrideForm.lasts_of(act, "") if key.isdigit()]


#: Words that people type for an action, also those of earlier releases. No page displays them.
_ALSO = {
    "forced_open": ("trip", "hold", "open", "block", "stop", "calls", "override"),
    "forced_closed": ("hold", "closed", "send", "override"),
    "extend": ("override", "longer", "prolong"),
    "automatic": ("automatic", "release", "remove", "override"),
    "reset": ("close", "clear", "counters"),
}


def _pages(request: HttpRequest) -> list[Entry]:
    reader = reader_of(request)
    sections = entries_for(reader) if reader else ()
    places = [
        *(entry for _, entries in sections for entry in entries),
        *(entry for entry in _MORE_PAGES if may(request.user, entry.needs, environment_in(request))),
    ]
    return [_entry(f"page:{place.view}", place.name, "Page", place.href, also=place.also) for place in places]


#: Pages that have no place in the side bar.
_MORE_PAGES = (
    PageLink("account", "Your account", "password second factor"),
    PageLink("defaults", "Current defaults", "presets"),
    PageLink("saved_views", "Saved views", "bookmarks filters shared save this view"),
    PageLink("help", "Help", "documentation first steps glossary keyboard api"),
    PageLink("bulk", "Bulk edit tenants", "change many suspend resume raise", needs="edit_quota"),
)


def _views(request: HttpRequest) -> list[Entry]:
    return [
        _entry(
            f"view:{view.id}",
            view.name,
            f"View of {view.heading}",
            view.href,
            also=f"saved view {view.words}",
        )
        for view in views_of(request) or ()
    ]


def _commands(request: HttpRequest) -> list[Entry]:
    """Commands that run at once in the browser, and forms without an object."""
    ui = [
        _entry(f"ui:{run}", name, "Runs at once", ui=run, also=also)
        for run, name, also in (
            ("theme", "Switch theme", "dark light colours"),
            ("pause", "Pause or resume updates", "freeze live"),
            ("wall", "Wall display", "tv screen"),
            ("copy", "Copy link to this page", "url address share"),
        )
    ]
    forms = [
        _form(f"form:{key}", name, address, also)
        for key, name, also, address, permission in (
            ("tenant", "Add tenant", "new create", f"{reverse('edit', args=['tenant'])}?new", "edit_tenant"),
            ("tier", "Add tier", "new create", f"{reverse('edit', args=['tier'])}?new", "edit_quota"),
            (
                "dependency",
                "Add dependency",
                "new create breaker",
                reverse("new_dependency"),
                "edit_breaker_policy",
            ),
            (
                "budget",
                "Add budget of calls or tokens",
                "new create daily limit spend",
                reverse("add_budget"),
                "edit_quota",
            ),
            (
                "money_budget",
                "Add budget in USD",
                "new create money spend costs",
                reverse("add_money_budget"),
                "edit_quota",
            ),
        )
        if may(request.user, permission, environment_in(request))
    ]
    switch = [
        _entry(
            f"environment:{name}",
            f"Switch to {name}",
            "Environment",
            home_of(name),
            also="change environment",
        )
        for name in environments_of(request.user)
        if name != environment_in(request)
    ]
    return [*ui, *switch, *forms]


def _pods(live: Live) -> list[Entry]:
    return [
        _entry(
            f"pod:{row.name}",
            row.name,
            f"Pod, {row.word.lower()}",
            reverse("server", args=[row.name]),
            glyph="warn" if row.troubled else "ok",
            css=row.css,
        )
        for row in live.fleet.rows
    ]


def _named(request: HttpRequest) -> list[Entry]:
    """The editor of each tier, and the page that raises each budget in money."""
    where = environment_in(request)
    if not may(request.user, "edit_quota", where):
        return []
    editor = reverse("edit", args=["tier"])
    try:
        return [
            *(
                _form(
                    f"tier:{name}",
                    f"Edit tier {name}",
                    f"{editor}?{urlencode({'key': name})}",
                    "quota limit raise",
                )
                for name in names_of(Tier, where)[:_MAX_NAMED]
            ),
            *(
                _form(
                    f"raise:{name}",
                    f"Raise budget {name}",
                    reverse("money_budget", args=[name]),
                    "spend edit usd",
                )
                for name in names_of(Budget, where)[:_MAX_NAMED]
            ),
        ]
    except (OperationalError, InterfaceError):
        return []  # Their pages need Postgres too.


def _domains(request: HttpRequest) -> list[Entry]:
    try:
        return [
            _entry(f"envoy:{name}", name, "Rules for Envoy", reverse("envoy_domain", args=[name]))
            for name in names_of(DescriptorFile, environment_in(request))
        ]
    except (OperationalError, InterfaceError):
        return []  # Their pages need Postgres too.


def _tenants(request: HttpRequest, query: str) -> list[Entry]:
    if len(query) < _SHORTEST_SEARCH:
        return []
    rows = search_tenants(Tenant.objects.filter(environment=environment_in(request), deleted=False), query)
    editor, page = reverse("edit", args=["tenant"]), reverse("tenant")
    entries = []
    try:
        found = list(first_tenants(rows, "key", _TENANTS))
    except (OperationalError, InterfaceError):
        return []  # Their pages need Postgres too.
    for row in found:
        key = urlencode({"key": row.key})
        entries.append(
            _entry(
                f"tenant:{row.key}",
                row.key,
                "Tenant, suspended" if row.suspended else "Tenant quotas",
                f"{page}?{key}",
                glyph="human",
                also=row.title,
            )
        )
        if may(request.user, "edit_tenant", environment_in(request)):
            act, value = ("Resume", "no") if row.suspended else ("Suspend", "yes")
            for name, rest in (("Edit", ""), (act, f"&own.suspended={value}")):
                entries.append(
                    _form(
                        f"{name.lower()}:{row.key}",
                        f"{name} {row.key}",
                        f"{editor}?{key}{rest}",
                        f"tenant quota limit move raise {row.title}",
                    )
                )
    return entries
