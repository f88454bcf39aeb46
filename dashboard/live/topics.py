"""The topics that sockets listen to, and the fragments of each that are sent again when they change."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.template.loader import get_template

from controlplane.accounts.permissions import Services
from dashboard.links import element_id
from dashboard.live.overview import Live
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

Context = dict[str, Any]

#: Templates are indented for people; every socket is spared that, and the empty lines of tags.
_INDENT = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class Topic:
    """Every socket with the same environment, page, rights and key gets the same bytes."""

    page: str
    role: str
    #: The breaker, the tenant, the form with its revision, or the newest audit entry that the page displays.
    key: str = ""
    #: The time that a breaker's timeline covers.
    range: str = "1h"
    environment: str = DEFAULT_ENVIRONMENT
    #: The services for which the role is higher: their buttons are drawn.
    services: Services = ()
    #: The side bar offers what belongs to no environment only with this right.
    administers_everywhere: bool = False


@dataclass(frozen=True)
class Fragment:
    """An element with an id, and the partial that draws it.

    ``items`` are its children if they are sent alone. The markup around them is sent only when their order
    has changed.
    """

    target: str
    template: str
    context: Context = field(default_factory=dict)
    items: tuple["Fragment", ...] | None = None

    def html(self, shared: Context) -> str:
        drawn = get_template(f"dashboard/{self.template}").render({**shared, **self.context})
        return _INDENT.sub("\n", drawn).strip()


def fragments(topic: Topic, context: Context) -> list[Fragment]:
    """The page's fragments, frame first."""
    frame = _parts("frame.html", "nav", "store")
    if topic.page in _PARTS:
        subject, names = _PARTS[topic.page]
        missing = bool(subject) and context.get(subject) is None
        return frame if missing else frame + _parts(f"{topic.page}.html", *names)
    own = _OF_PAGE.get(topic.page)
    return frame + own(context) if own else frame


def _parts(template: str, *names: str) -> list[Fragment]:
    """Partials of a template that have the names of their elements."""
    return [Fragment(name, f"{template}#{name}") for name in names]


def _rows(template: str, rows: Mapping[str, Context]) -> Fragment:
    """A table whose rows are sent alone: the id of each, and what it displays."""
    items = tuple(Fragment(target, f"{template}#row", context) for target, context in rows.items())
    return Fragment("rows", f"{template}#rows", items=items)


def _overview(context: Context) -> list[Fragment]:
    live: Live = context["live"]
    cards = tuple(Fragment(f"br-{b.name}", "overview.html#card", {"breaker": b}) for b in live.cards)
    calm = tuple(Fragment(f"calm-{b.name}", "overview.html#calm_row", {"breaker": b}) for b in live.quiet)
    return [
        *_parts("overview.html", "verdict", "guide", "calls", "chips", "refused", "tenants", "quotas"),
        *(Fragment(f"kpi-{tile.key}", "overview.html#tile", {"tile": tile}) for tile in live.tiles),
        Fragment("cards", "overview.html#cards", items=cards),
        Fragment("calm", "overview.html#calm", items=calm),
        *_parts("overview.html", "retries", "slots", "fleet", "conditions", "waiting", "held", "events"),
    ]


def _breakers(context: Context) -> list[Fragment]:
    live: Live = context["live"]
    rows = {f"row-{breaker.name}": {"breaker": breaker} for breaker in live.breakers}
    return [*_parts("breakers.html", "counted"), _rows("breakers.html", rows)]


def _servers(context: Context) -> list[Fragment]:
    live: Live = context["live"]
    tiles = [Fragment(f"kpi-{t.key}", "servers.html#tile", {"tile": t}) for t in context["server_tiles"]]
    rows = {f"srv-{row.name}": {"row": row} for row in live.fleet.rows}
    parts = _parts("servers.html", "frozen", "protection")
    return [*_parts("servers.html", "verdict"), *tiles, *parts, _rows("servers.html", rows)]


def _edit(context: Context) -> list[Fragment]:
    return [Fragment("theirs", "edit_theirs.html")] if "theirs" in context else []


def _bulkheads(context: Context) -> list[Fragment]:
    rows = {
        f"r-{row.dependency}-{tier.tier}": {"row": row, "tier": tier}
        for row in context["rows"]
        for tier in row.tiers
    }
    return [_rows("bulkheads.html", rows)]


def _backlogs(context: Context) -> list[Fragment]:
    return [_rows("backlogs.html", {f"r-{row.name}": {"row": row} for row in context["rows"]})]


def _retries(context: Context) -> list[Fragment]:
    return [_rows("retries.html", {f"r-{row.dependency}": {"row": row} for row in context["rows"]})]


def _tenant(context: Context) -> list[Fragment]:
    if context.get("tenant") is None:
        return []
    names = ("hero", "quota_now", "use_now", "refused_now", "rollout", "history")
    # The use of each quota, so that the table and the tile above it have the same rate.
    uses = [Fragment(f"use-{q.name}", "quota_row.html#use", {"q": q}) for q in context["quotas"]]
    return [*_parts("tenant.html", *names), *uses]


def _ranking(context: Context) -> list[Fragment]:
    rows = {f"r-{element_id(row.tenant, row.rule)}": {"row": row} for row in context["rows"]}
    return [_rows(f"{context['page']}.html", rows)]


#: Page -> the value without which it displays nothing, and its parts.
_PARTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "alerts": ("", ("rows",)),
    "audit": ("", ("news",)),
    "backlog": ("breaker", ("hero", "facts")),
    "breaker": ("breaker", ("hero", "facts", "timeline", "agree", "protection", "backlog")),
    "breaker_history": ("breaker", ("hero", "timeline", "transitions", "own", "failures")),
    "locks": ("", ("without", "held", "rows", "once")),
    "server": ("pod", ("verdict", "load", "sees", "identity")),
}
_OF_PAGE: dict[str, Callable[[Context], list[Fragment]]] = {
    "overview": _overview,
    "breakers": _breakers,
    "servers": _servers,
    "tenant": _tenant,
    "edit": _edit,
    "backlogs": _backlogs,
    "bulkheads": _bulkheads,
    "retries": _retries,
    "limits": _ranking,
    "hot_keys": _ranking,
}
#: Pages of which only the frame is live.
_FRAME_ONLY = (
    "account",
    "alert",
    "alert_rules",
    "budgets",
    "bulk",
    "changes",
    "costs",
    "dependency",
    "drills",
    "edit_freeze",
    "envoy",
    "error_budgets",
    "explain",
    "help",
    "import",
    "incidents",
    # An address that no page has, or the page of something that was removed.
    "missing",
    "vendor_accounts",
    "models",
    "mutes",
    "people",
    "pod_protection",
    "receivers",
    "reconciliation",
    "refusals",
    "requests",
    "revisions",
    "routes",
    "runbooks",
    "schedules",
    "selection",
    "templates",
    "tenants",
    "tiers",
    "tokens",
    "views",
    "weekly",
)
_WITH_CONTENT = frozenset((*_PARTS, *_OF_PAGE))
PAGES = _WITH_CONTENT.union(_FRAME_ONLY)
#: Pages whose own content is live, not only the frame around it. Of the audit, only a hint that the table
#: is older than the newest entry is sent again; of a form, what other people changed meanwhile.
LIVE_PAGES = _WITH_CONTENT - {"audit", "edit"}
#: Pages whose content is the fleet. The page of a tenant reads its own figures.
FLEET_PAGES = LIVE_PAGES - {"tenant"}
