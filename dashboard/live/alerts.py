"""Alerts as the pages display them: a finding with its colour, its glyph and its link."""

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from controlplane.alerts.rules.rule import Finding, Headline, Subject
from controlplane.alerts.state.stored_alerts import StoredAlert


@dataclass(frozen=True, kw_only=True)
class Alert:
    severity: str
    key: str
    text: str
    detail: str
    runbook: str
    #: Where to look.
    link: str
    since: float | None
    #: ``None`` for what the headline leaves out.
    headline: Headline | None
    weight: int = 0
    dates_incident: int = 0
    #: Its number in Postgres; ``None`` until the worker has evaluated it.
    number: int | None = None
    acknowledged_by: str = ""
    #: That it is about.
    dependency: str = ""
    #: In which people work on it.
    incident: int | None = None

    @property
    def css(self) -> str:
        return "st-open" if self.severity == "critical" else "st-warn"

    @property
    def glyph(self) -> str:
        return "crit" if self.severity == "critical" else "warn"


def alert_of(finding: Finding, stored: StoredAlert | None = None) -> Alert:
    return Alert(
        key=finding.key,
        severity=finding.severity,
        text=finding.text,
        detail=finding.detail,
        runbook=finding.runbook,
        link=link_of(finding.subject),
        since=finding.since,
        headline=finding.headline,
        weight=finding.weight,
        dates_incident=finding.dates_incident,
        number=stored.id if stored is not None else None,
        acknowledged_by=stored.acknowledged_by if stored is not None else "",
        dependency=finding.subject.name if finding.subject.kind == "breaker" else "",
        incident=stored.incident if stored is not None else None,
    )


def link_of(subject: Subject) -> str:
    """The page where the subject of an alert is displayed."""
    match subject.kind:
        case "breaker" | "server":
            return reverse(subject.kind, args=[subject.name])
        case "tenant":
            return f"{reverse('tenant')}?{urlencode({'key': subject.name})}"
        case "quota":
            return f"{reverse('tenant')}?{urlencode({'key': subject.name, 'quota': subject.quota})}"
        case "configuration":
            return reverse("revisions")
        case _:
            return reverse(subject.kind)
