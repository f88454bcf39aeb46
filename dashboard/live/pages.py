"""The content of each page, computed before anything of it is drawn."""

from dataclasses import dataclass

from controlplane.accounts.permissions import covered
from dashboard.live.breaker_page import agreement_of, failures_of, past
from dashboard.live.capacity import bulkhead_rows, hot_rows, limit_rows, retry_rows
from dashboard.live.edited import theirs_of
from dashboard.live.frame import Frame
from dashboard.live.history import History
from dashboard.live.locks import locks_page
from dashboard.live.overview import Live
from dashboard.live.pod_page import pod_page
from dashboard.live.pod_protection import pods_protection
from dashboard.live.protection import protection_of
from dashboard.live.tenant import tenant_context
from dashboard.live.topics import LIVE_PAGES, Context, Topic
from dashboard.navigation import Count, navigation_of
from dashboard.reader import Reader


@dataclass(frozen=True)
class Page:
    topic: Topic
    #: The values for the template of the page and for its fragments.
    context: Context


def _section(topic: Topic) -> str:
    """The page that the navigation marks: an editor belongs to the list of what it edits."""
    if topic.page != "edit":
        return {"breaker_history": "breaker", "alert": "alerts"}.get(topic.page, topic.page)
    kinds = {"tenant": "tenants", "dependency": "breakers", "environment": "edit"}
    return kinds.get(topic.key.partition(" ")[0], "tiers")


def counts_of(frame: Frame, reader: Reader) -> dict[str, Count]:
    """The numbers in the side bar that are not zero, by page."""
    requests = frame.requests.open if reader.approves else 0
    counts = {
        "alerts": Count(frame.alerts, frame.alerts_css, "firing"),
        "incidents": Count(frame.incidents, frame.incidents_css, "active"),
        "breakers": Count(frame.breakers, frame.breakers_css, "not closed"),
        "servers": Count(frame.pods_attention, "st-warn", "need attention"),
        "requests": Count(requests, "st-warn", "waiting for approval"),
        "schedules": Count(frame.schedules_failed, "st-open", "failed"),
    }
    return {view: count for view, count in counts.items() if count.number}


def frame_context(topic: Topic, frame: Frame) -> Context:
    """The values that the template of every page needs, whatever its content is."""
    reader = Reader(name="", role=topic.role, administers_everywhere=topic.administers_everywhere)
    return {
        "frame": frame,
        "no_data": frame.no_data,
        "page": topic.page,
        "navigation": navigation_of(_section(topic), reader, counts_of(frame, reader)),
        "is_live": topic.page in LIVE_PAGES,
        "operates": reader.operates,
        "administers": reader.administers,
        "administers_everywhere": topic.administers_everywhere,
        "approves": reader.approves,
        # Services whose breakers and pods the reader also operates, and whose dependencies they also edit.
        "operated": covered(topic.services, "override_breaker"),
        "administered": covered(topic.services, "edit_breaker_policy"),
    }


def edits_here(topic: Topic, context: Context) -> bool:
    """Whether the reader may use the form of the topic."""
    own = context["administered"] and topic.key.startswith("dependency ")
    return bool(context["administers"] or own)


def page_of(topic: Topic, live: Live, history: History) -> Page:
    context = {"live": live, **frame_context(topic, live.frame)}
    match topic.page:
        case "servers":
            context["server_tiles"] = live.server_tiles
            context["protection"] = pods_protection(live.facts, live.fleet)
        case "breaker":
            context["breaker"] = live.breaker(topic.key)
            context["backlog"] = live.backlog(topic.key)
            context["protection"] = protection_of(live.breaker(topic.key), live.facts)
            context["timeline"] = past(live, topic.key, topic.range)
            context["agreement"] = agreement_of(live.breaker(topic.key))
        case "breaker_history":
            context["breaker"] = live.breaker(topic.key)
            context["range"] = topic.range
            context["timeline"] = past(live, topic.key, topic.range)
            context["failures"] = failures_of(live, topic.key)
        case "tenant":
            context |= tenant_context(live.facts, topic.key)
        case "server":
            context["pod"] = pod_page(live, topic.key)
        case "backlogs":
            context["rows"] = live.backlogs
        case "backlog":
            context["backlog"] = live.backlog(topic.key)
            context["breaker"] = live.breaker(topic.key)
        case "bulkheads":
            context["rows"] = bulkhead_rows(live.facts)
        case "retries":
            context["rows"] = retry_rows(live.facts)
        case "locks":
            context["locks"] = locks_page(live.locks)
        case "limits":
            context["rows"] = limit_rows(live.facts)
        case "hot_keys":
            context["rows"] = hot_rows(live.facts)
        case "edit" if edits_here(topic, context):
            made_at = live.facts.revisions[-1][1] if live.facts.revisions else live.facts.now
            context["theirs"] = theirs_of(topic.key, live.facts, made_at)
        case "audit":
            newest = int(topic.key) if topic.key.isdecimal() else 0
            context["fresh"] = sum(change.id > newest for change in live.facts.changes) if newest else 0
    return Page(topic, context)
