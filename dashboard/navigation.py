"""The side bar: seven sections, and the pages of each. The palette offers the same pages.

A section links to its first page. Its pages are displayed while one of them is open.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from dashboard.reader import Reader


@dataclass(frozen=True)
class PageLink:
    """A page, as the side bar and the palette link to it."""

    view: str
    name: str
    #: Other words that people search for.
    also: str = ""
    #: Pages that the entry marks as open, besides its own.
    marks: tuple[str, ...] = ()
    #: The key after ``g``.
    key: str = ""
    #: The right without which the entry is not displayed.
    needs: str = "view"
    #: Arguments of its address.
    args: tuple[str, ...] = ()

    @property
    def href(self) -> str:
        return reverse(self.view, args=self.args)


#: Section -> its pages, in the order of the side bar.
SECTIONS: dict[str, tuple[PageLink, ...]] = {
    "Overview": (PageLink("overview", "Overview", "home start", key="o"),),
    "Incidents": (
        PageLink("incidents", "Incidents", "postmortem timeline report note outage"),
        PageLink("alerts", "Alerts", "firing acknowledge"),
        PageLink("runbooks", "Runbooks", "help"),
        PageLink("mutes", "Mutes", "silence maintenance window alerts"),
        PageLink("alert_rules", "Alert rules", "thresholds levels monitoring"),
        PageLink("receivers", "Receivers", "webhook pager notify alerts", needs="manage_receivers"),
        PageLink(
            "routes", "Routes", "who gets alerts on call hours owner escalate", needs="acknowledge_alert"
        ),
        PageLink("weekly", "Weekly summary", "report week"),
    ),
    "Dependencies": (
        PageLink(
            "breakers",
            "Breakers",
            "dependencies circuit",
            marks=("breaker", "selection", "dependency", "decline_suggestion"),
            key="b",
        ),
        PageLink("bulkheads", "Bulkheads", "slots concurrency queue"),
        PageLink("retries", "Retries", "budget"),
        PageLink("backlogs", "Backlogs", "queue jobs dead letters workers depth", marks=("backlog",)),
        PageLink("locks", "Locks", "idempotency key once mutex fence lost replayed"),
    ),
    "Limits": (
        PageLink(
            "tenants", "Tenants", "customers suspend resume raise quota", marks=("tenant", "bulk"), key="t"
        ),
        PageLink("tiers", "Tiers", "plans raise quota"),
        PageLink("templates", "Templates", "limits"),
        PageLink("vendor_accounts", "Accounts", "vendor bill pools money api key"),
        PageLink("models", "Models", "llm price list prices aliases usd tokens pool"),
        PageLink(
            "costs", "Costs", "models llm tokens money usd bill spend ledger tenants month invoices drift"
        ),
        PageLink("budgets", "Budgets", "costs spend spent money tokens usage projected month raise"),
        PageLink("envoy", "Envoy", "descriptors rate limit service mesh proxy domains rules yaml"),
        PageLink("limits", "Use now", "rate limits quota near shadow"),
        PageLink("hot_keys", "Hot keys", "busiest tenants fleet lease rate callers digest"),
        PageLink("refusals", "Refusals", "429 503 log samples who is refused most"),
        PageLink("error_budgets", "Error budgets", "slo target burn availability"),
        PageLink("explain", "Explain a refusal", "429 token why refused"),
    ),
    "Fleet": (
        PageLink("servers", "Pods", "fallback redis heartbeat instances", marks=("server",), key="s"),
        PageLink("pod_protection", "Protection", "shedding readiness overload", needs="edit_breaker_policy"),
        PageLink(
            "reconciliation", "Allowed without Redis", "fallback local reconciliation outage over the limit"
        ),
        PageLink("drills", "Drills", "start a drill redis unreachable", needs="run_drills"),
    ),
    "Changes": (
        PageLink("changes", "All changes", "what happened timeline history revert deploys"),
        PageLink("revisions", "Edits", "revisions history revert undo restore"),
        PageLink("requests", "Waiting for approval", "change requests approve proposals"),
        PageLink("schedules", "Scheduled", "schedules planned later"),
        PageLink("audit", "Audit", "who log changes", key="a"),
        PageLink("import", "Import", "yaml csv file apply", needs="edit_quota"),
        PageLink("edit_freeze", "Freeze edits", "stop changes lock", needs="freeze_edits"),
    ),
    "Admin": (
        PageLink("people", "People", "users roles invite", needs="manage_people"),
        PageLink("tokens", "Tokens", "api agent key revoke rotate", needs="manage_tokens"),
        PageLink(
            "edit",
            "Environment",
            "settings approvals default tier",
            args=("environment",),
            needs="edit_quota",
        ),
    ),
}


@dataclass(frozen=True)
class Count:
    """A number beside an entry, and the words that screen readers read."""

    number: int
    css: str
    words: str


def entries_for(reader: Reader) -> Iterator[tuple[str, list[PageLink]]]:
    """The sections, each with the pages that the reader may open. A section without pages is left out."""
    for name, entries in SECTIONS.items():
        own = [entry for entry in entries if reader.may(entry.needs)]
        if own:
            yield name, own


def navigation_of(page: str, reader: Reader, counts: Mapping[str, Count]) -> list[dict[str, Any]]:
    """The side bar of one page, for ``frame.html``. ``counts``: page -> what waits there."""
    sections = []
    for name, entries in entries_for(reader):
        shown = [
            {"entry": entry, "here": page in (entry.view, *entry.marks), "count": counts.get(entry.view)}
            for entry in entries
        ]
        is_open = any(one["here"] for one in shown)
        # A closed section with the name of one of its pages counts what that page lists, and without that
        # what its other pages count.
        own = [entry for entry in entries if entry.name == name]
        named = [entry for entry in own if entry.view in counts]
        counted = [entry for entry in named or entries if entry.view in counts]
        sections.append(
            {
                "name": name,
                "entries": shown,
                "counts": [counts[entry.view] for entry in counted],
                # Alerts that fire are no incidents: the number beside "Incidents" says what it counts.
                "counted": counted[0].name.lower() if own and counted and not named else "",
                "first": entries[0],
                "is_open": is_open,
                "is_single": len(SECTIONS[name]) == 1,
            }
        )
    return sections
