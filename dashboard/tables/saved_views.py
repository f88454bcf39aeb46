"""Lists that can be saved as a view, with their parameters; and the views that a page offers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest
from django.urls import Resolver404, resolve, reverse

from controlplane.accounts.models import SavedView
from controlplane.accounts.permissions import environment_in
from controlplane.accounts.saved_views import views_for
from controlplane.errors import InvalidEdit
from controlplane.page_addresses import split_address
from controlplane.validation import is_printable

#: Page -> its heading, and its parameters besides those of every table. Every reader may open these pages.
LISTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "alerts": ("Alerts", ("period", "severity")),
    "audit": ("Audit", ("period", "kind", "by", "origin", "actor")),
    "breakers": ("Breakers", ("state",)),
    "budgets": ("Budgets", ()),
    "backlogs": ("Backlogs", ()),
    "bulkheads": ("Bulkheads", ()),
    "costs": ("Costs", ("by", "month", "day", "model", "tenant", "service")),
    "changes": ("Changes", ("kind", "thing", "actor", "period", "to")),
    "envoy": ("Envoy", ()),
    "hot_keys": ("Hot keys", ()),
    "limits": ("Use now", ()),
    "locks": ("Locks", ()),
    "vendor_accounts": ("Accounts", ()),
    "models": ("Models", ()),
    "refusals": (
        "Refusals",
        ("range", "tenant", "endpoint", "reason", "dependency", "rule", "pod", "tier"),
    ),
    "requests": ("Change requests", ()),
    "retries": ("Retries", ()),
    "revisions": ("Revisions", ("period", "only")),
    "runbooks": ("Runbooks", ()),
    "schedules": ("Schedules", ()),
    "servers": ("Pods", ("state",)),
    "templates": ("Templates", ()),
    "tenants": ("Tenants", ("tier", "parent", "state")),
    "tiers": ("Tiers", ()),
}
#: Words and order of a table, under the name of its heading if it is not the main one; the range of charts.
_OF_TABLES = re.compile(r"([a-z0-9-]{1,64}\.)?(q|sort)|span|since|until")
#: The place in a list, the notice of an edit, and the mode of a wall display: a view begins at the start.
PLACES = frozenset({"after", "before", "displayed", "page", "saved", "start", "wall"})
#: Offered above a list. The page of views has the rest.
_OFFERED = 8


@dataclass(frozen=True, kw_only=True)
class View:
    id: int
    name: str
    page: str
    heading: str
    #: Its filters and its order, in words.
    words: str
    href: str
    owner: str
    mine: bool
    shared: bool
    open: bool = False


def view_of(row: Any, *, open_query: Mapping[str, str] | None = None) -> View:
    return View(
        id=row.pk,
        name=row.name,
        page=row.page,
        heading=LISTS[row.page][0],
        words=", ".join(_words(*given) for given in sorted(row.query.items())) or "no filter",
        href=address_of(row),
        owner=row.owner.get_username(),
        mine=row.mine,
        shared=row.shared,
        open=row.query == open_query,
    )


def _words(name: str, value: str) -> str:
    table, _, kind = name.rpartition(".")
    if kind == "sort":
        way = "descending" if value.startswith("-") else "ascending"
        return f"{table} by {value.removeprefix('-')}, {way}".strip()
    return f"{table} words {value}".strip() if kind == "q" else f"{name} {value}"


def views_of(request: HttpRequest) -> list[View] | None:
    """All views that the reader sees, their own first; ``None`` while Postgres is down."""
    rows = views_for(request.user.get_username(), environment_in(request))
    try:
        return [view_of(row) for row in rows if row.page in LISTS]
    except (OperationalError, InterfaceError):
        return None


def offered_views(request: HttpRequest, *, stale: bool) -> dict[str, Any] | None:
    """The views of the page that is shown, and where it is saved.

    ``None`` on a page that is no list, and while Postgres is down.
    """
    match = request.resolver_match
    page = match.url_name if match else None
    if page not in LISTS or stale:
        return None
    here = {name: str(value) for name, value in request.GET.items() if value and _is_filter(page, name)}
    visible = views_for(request.user.get_username(), environment_in(request))
    try:
        rows = list(visible.filter(page=page)[: _OFFERED + 1])
    except (OperationalError, InterfaceError):
        return None
    address = f"{request.path}?{urlencode(here)}" if here else request.path
    return {
        "shown": [view_of(row, open_query=here) for row in rows[:_OFFERED]],
        "more": len(rows) > _OFFERED,
        "save": f"{reverse('saved_views')}?{urlencode({'address': address})}",
    }


def address_of(row: SavedView) -> str:
    """The address of a view: made from the name of its page, so that it never leaves this site."""
    query = urlencode(sorted(row.query.items()))  # Postgres does not keep their order.
    return f"{reverse(row.page)}?{query}" if query else reverse(row.page)


def list_at(address: str, request: HttpRequest) -> tuple[str, dict[str, str]]:
    """The page and the parameters of an address of this site and environment. Raises ``InvalidEdit``."""
    try:
        parts = urlsplit(address.strip())
        if parts.netloc not in ("", request.get_host()) or parts.scheme not in ("", "http", "https"):
            raise _wrong("Enter an address of this site.")
        environment, path = split_address(parts.path)
        match = resolve(path)
        given = parse_qsl(parts.query, max_num_fields=50)
    except (ValueError, Resolver404):
        raise _wrong(_NO_LIST) from None
    if environment != environment_in(request):
        raise _wrong(f"This list is of environment {environment}. Save its view there.")
    page = match.url_name or ""
    if match.namespaces or page not in LISTS:
        raise _wrong(_NO_LIST)
    query = {name: value for name, value in given if name not in PLACES}
    heading = LISTS[page][0]
    for name, value in query.items():
        if not _is_filter(page, name):
            raise _wrong(f"{heading} has no filter {name[:64]!r}. Remove it from the address.")
        if not is_printable(value):
            raise _wrong(f"Remove the control characters from {name}.")
    return page, query


def _is_filter(page: str, name: str) -> bool:
    return name in LISTS[page][1] or bool(_OF_TABLES.fullmatch(name))


_NO_LIST = "This address is not a list. Open a list, such as Breakers or Tenants, and choose Save view there."


def _wrong(text: str) -> InvalidEdit:
    return InvalidEdit({"address": [text]})
