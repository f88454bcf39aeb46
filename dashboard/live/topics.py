"""The topics that sockets listen to, and the fragments of each that are sent again when they change."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.template.loader import get_template

from controlplane.accounts.permissions import Services
from dashboard.live.overview import Live
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

Context = dict[str, Any]

#: Templates are indented for people; every socket is spared that, and the empty lines of tags.
_INDENT = re.compile(r"\s*\n\s*")


@dataclass(frozen=True)
class Topic:
    """Every socket with the same environment, page, role and key gets the same bytes."""

    page: str
    role: str
    #: The breaker, the tenant, the form with its revision, or the newest audit entry that the page displays.
    key: str = ""
    #: The time that a breaker's timeline covers.
    range: str = "1h"
    environment: str = DEFAULT_ENVIRONMENT
    #: The services for which the role is higher: their buttons are drawn.
    services: Services = ()


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
    frame = [Fragment("nav", "frame.html#nav"), Fragment("store", "frame.html#store")]
    own = _OF_PAGE.get(topic.page)
    return frame + own(context) if own else frame


def _overview(context: Context) -> list[Fragment]:
    live: Live = context["live"]
    cards = tuple(Fragment(f"br-{b.name}", "overview.html#card", {"breaker": b}) for b in live.cards)
    calm = tuple(Fragment(f"calm-{b.name}", "overview.html#calm_row", {"breaker": b}) for b in live.quiet)
    return [
        *(
            Fragment(name, f"overview.html#{name}")
            for name in ("verdict", "guide", "calls", "chips", "refused", "tenants", "quotas")
        ),
        *(Fragment(f"kpi-{tile.key}", "overview.html#tile", {"tile": tile}) for tile in live.tiles),
        Fragment("cards", "overview.html#cards", items=cards),
        Fragment("calm", "overview.html#calm", items=calm),
        *(
            Fragment(name, f"overview.html#{name}")
            for name in ("retries", "slots", "fleet", "conditions", "held", "events")
        ),
    ]


def _breakers(context: Context) -> list[Fragment]:
    live: Live = context["live"]
    rows = tuple(Fragment(f"row-{b.name}", "breakers.html#row", {"breaker": b}) for b in live.breakers)
    return [Fragment("counted", "breakers.html#counted"), Fragment("rows", "breakers.html#rows", items=rows)]


def _breaker(context: Context) -> list[Fragment]:
    if context["breaker"] is None:
        return []
    names = ("hero", "facts", "timeline", "transitions", "agree", "failures", "protection", "backlog")
    return [Fragment(name, f"breaker.html#{name}") for name in names]


def _servers(context: Context) -> list[Fragment]:
    live: Live = context["live"]
    rows = tuple(Fragment(f"srv-{row.name}", "servers.html#row", {"row": row}) for row in live.fleet.rows)
    tiles = [Fragment(f"kpi-{t.key}", "servers.html#tile", {"tile": t}) for t in context["server_tiles"]]
    return [
        Fragment("verdict", "servers.html#verdict"),
        *tiles,
        Fragment("frozen", "servers.html#frozen"),
        Fragment("protection", "servers.html#protection"),
        Fragment("rows", "servers.html#rows", items=rows),
    ]


def _server(context: Context) -> list[Fragment]:
    if context["pod"] is None:
        return []
    return [Fragment(name, f"server.html#{name}") for name in ("verdict", "load", "sees", "identity")]


def _tenant(context: Context) -> list[Fragment]:
    if context.get("tenant") is None:
        return []
    return [Fragment(name, f"tenant.html#{name}") for name in ("hero", "rollout", "history")]


def _audit(context: Context) -> list[Fragment]:
    return [Fragment("news", "audit.html#news")]


def _edit(context: Context) -> list[Fragment]:
    return [Fragment("theirs", "edit_theirs.html")] if "theirs" in context else []


def _alerts(context: Context) -> list[Fragment]:
    return [Fragment("rows", "alerts.html#rows")]


def _bulkheads(context: Context) -> list[Fragment]:
    rows = tuple(
        Fragment(
            f"r-{row.dependency}-{tier.tier}",
            "bulkheads.html#row",
            {"row": row, "tier": tier, "first": tier is row.tiers[0]},
        )
        for row in context["rows"]
        for tier in row.tiers
    )
    return [Fragment("rows", "bulkheads.html#rows", items=rows)]


def _backlogs(context: Context) -> list[Fragment]:
    rows = tuple(Fragment(f"r-{row.name}", "backlogs.html#row", {"row": row}) for row in context["rows"])
    return [Fragment("rows", "backlogs.html#rows", items=rows)]


def _backlog(context: Context) -> list[Fragment]:
    if context["breaker"] is None:
        return []
    return [Fragment(name, f"backlog.html#{name}") for name in ("hero", "facts")]


def _retries(context: Context) -> list[Fragment]:
    rows = tuple(Fragment(f"r-{row.dependency}", "retries.html#row", {"row": row}) for row in context["rows"])
    return [Fragment("rows", "retries.html#rows", items=rows)]


def _locks(_: Context) -> list[Fragment]:
    return [Fragment(name, f"locks.html#{name}") for name in ("without", "held", "rows", "once")]


def _ranking(context: Context) -> list[Fragment]:
    """Rows by place, because the names of tenants and quotas make no id."""
    template = f"{context['page']}.html"
    rows = tuple(
        Fragment(f"r-{place}", f"{template}#row", {"row": row, "place": place})
        for place, row in enumerate(context["rows"], 1)
    )
    return [Fragment("rows", f"{template}#rows", items=rows)]


_OF_PAGE: dict[str, Callable[[Context], list[Fragment]]] = {
    "overview": _overview,
    "breakers": _breakers,
    "breaker": _breaker,
    "server": _server,
    "servers": _servers,
    "tenant": _tenant,
    "alerts": _alerts,
    "audit": _audit,
    "edit": _edit,
    "backlogs": _backlogs,
    "backlog": _backlog,
    "bulkheads": _bulkheads,
    "retries": _retries,
    "limits": _ranking,
    "locks": _locks,
    "hot_keys": _ranking,
}
#: Pages of which only the frame is live.
_FRAME_ONLY = (
    "account",
    "alert_rules",
    "budgets",
    "bulk",
    "changes",
    "dependency",
    "drills",
    "explain",
    "import",
    "incidents",
    # An address that no page has, or the page of something that was removed.
    "missing",
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
PAGES = frozenset((*_OF_PAGE, *_FRAME_ONLY))
#: Pages whose own content is live, not only the frame around it. Of the audit, only a hint that the table
#: is older than the newest entry is sent again; of a form, what other people changed meanwhile.
LIVE_PAGES = frozenset(_OF_PAGE) - {"audit", "edit"}
#: Pages whose content is the fleet. The page of a tenant reads its own figures.
FLEET_PAGES = LIVE_PAGES - {"tenant"}
