"""Alerts as the pages display them: a finding with its colour, its glyph and its link."""

from dataclasses import dataclass
from urllib.parse import urlencode

from django.urls import reverse

from controlplane.alerts.rules.rule import Finding, Subject
from controlplane.alerts.state.stored_alerts import StoredAlert


@dataclass(frozen=True, kw_only=True)
class Alert(Finding):
    #: Where to look.
    link: str
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
        **vars(finding),
        link=link_of(finding.subject),
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
