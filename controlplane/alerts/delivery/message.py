"""The text of a message about an alert: what, since when, how bad, what is already being done, and where.

Webhooks have it beside the fields that programs read.
"""

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings

from controlplane.alerts.lifecycle import ResolvedWhy
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.rule import rule_of
from controlplane.breakers.models import Override
from controlplane.page_addresses import home_of
from fuseboard.contract.words import OverrideMode

_LEVELS = {1: "handled automatically", 2: "for people on call", 3: "needs a person at once"}
#: Level 1 without anything that handles it.
_NOT_ON_CALL = "not for people on call"
_NOT_HANDLED = "Nothing is done about it automatically."
_OVERRIDES = {
    OverrideMode.FORCED_OPEN: "forces the breaker open",
    OverrideMode.FORCED_CLOSED: "keeps the breaker closed",
    OverrideMode.METRICS_ONLY: "lets the breaker only count",
    OverrideMode.DISABLED: "disables the breaker",
}


def address_of_page(environment: str, path: str) -> str | None:
    """A page as people reach it: at the first of ``FUSEBOARD_ORIGINS``. ``None`` without one."""
    return f"{settings.ORIGINS[0]}{home_of(environment)}{path}" if settings.ORIGINS else None


def links_of(alert: Alert) -> dict[str, str | None]:
    of_breaker = alert.subject_kind == "breaker" and alert.subject_name
    # Its values and buttons are those of the dependency.
    of = f"?{urlencode({'of': alert.subject_name})}" if of_breaker else ""
    runbook = f"runbooks/{alert.runbook}{of}" if alert.runbook else None
    return {
        "page": address_of_page(alert.environment, _page_of(alert)),
        "runbook": address_of_page(alert.environment, runbook) if runbook else None,
    }


def _page_of(alert: Alert) -> str:
    """The page of what the alert is about, if it is one thing; otherwise that of all alerts."""
    name = alert.subject_name
    match alert.subject_kind:
        case "breaker" if name:
            return f"breakers/{quote(name, safe='')}"
        case "server" if name:
            return f"servers/{quote(name, safe='')}"
        case _:
            # Nor does the address of a message name a tenant, which can be erased.
            return "alerts"


def handled(alert: Alert, *, stored: bool = True) -> list[str]:
    """Texts about what is already being done. Without ``stored``, only what needs no Postgres."""
    rule = RULE_OF_KEY.get(rule_of(alert.key))
    found = [rule.handled] if rule is not None and rule.handled else []
    if stored and alert.subject_kind == "breaker" and alert.subject_name:
        found += [_override(row) for row in _overrides(alert)]
    if alert.acknowledged_at is not None:
        note = f": {alert.note}" if alert.note else "."
        found.append(f"{alert.acknowledged_by} acknowledged it at {_moment(alert.acknowledged_at)}{note}")
    return found


def _overrides(alert: Alert) -> list[Override]:
    rows = Override.objects.filter(
        ended_at=None, dependency__environment=alert.environment, dependency__name=alert.subject_name
    )
    return list(rows.order_by("pk"))


def _override(row: Override) -> str:
    what = _OVERRIDES[OverrideMode(row.mode)]
    return f"An override of {row.actor} {what} until {_moment(row.expires_at)}: {row.reason}"


def title_of(alert: Alert, kind: str) -> str:
    state = "Resolved" if kind == "resolved" else alert.severity.capitalize()
    return f"{state} in {alert.environment}: {alert.text}"[:250]


def text_of(alert: Alert, kind: str, done: list[str], explained: tuple[list[str], int]) -> str:
    """Lines for people, without the title."""
    lines = [_then(alert.detail, kind)] if alert.detail else []
    if kind == "resolved" and alert.resolved_at is not None:
        lasted = _duration((alert.resolved_at - alert.true_since).total_seconds())
        lines.append(f"From {_moment(alert.true_since)} to {_moment(alert.resolved_at)}: {lasted}.")
        if alert.resolved_why == ResolvedWhy.NO_TRAFFIC:
            lines.append("It ended after 10 minutes without traffic: nothing is known about it now.")
    else:
        whom = (
            _NOT_ON_CALL if alert.level == 1 and not done else _LEVELS.get(alert.level, "of an unknown level")
        )
        since = f"{alert.severity.capitalize()} since {_moment(alert.true_since)}."
        lines.append(f"{since} Level {alert.level}: {whom}.")
    lines += _NEWS.get(kind, [])
    if kind != "resolved":
        lines += done or [_NOT_HANDLED]
    texts, number = explained
    if number:
        more = f", and {number - len(texts)} more" if number > len(texts) else ""
        lines.append(f"These alerts follow from it: {'; '.join(texts)}{more}.")
    links = links_of(alert)
    lines += [
        f"{label}: {links[name]}" for label, name in (("Page", "page"), ("Runbook", "runbook")) if links[name]
    ]
    return "\n".join(lines)


def _then(detail: str, kind: str) -> str:
    """The figures of an alert that is over are not those of now."""
    return f"While it fired: {detail}" if kind == "resolved" else detail


_NEWS = {
    "escalated": ["No person has acknowledged it: you are the next receiver."],
    "flapping": ["It changes often. The next message follows when it is stable."],
    "stable": ["It has not changed for 10 minutes, and still fires."],
    "worsened": ["It became critical."],
}


def test_text(environment: str, by: str, receiver: str) -> dict[str, Any]:
    """The fields of a test message."""
    text = f"{by} tests the receiver {receiver}."
    return {
        "text": text,
        "title": f"Test in {environment}",
        "message": text,
        "links": {"page": address_of_page(environment, "alerts"), "runbook": None},
    }


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
