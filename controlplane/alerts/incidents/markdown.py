"""A report as Markdown, for a ticket or a wiki. Names and notes are text: none becomes a link or HTML."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from controlplane.alerts.incidents.affected import AffectedTenant
from controlplane.alerts.incidents.reading import title_of
from controlplane.alerts.incidents.report import Report
from controlplane.alerts.incidents.timeline import MAX, Line

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def as_markdown(report: Report) -> str:
    incident = report.incident
    taken = f" by {plain_text(report.acknowledged_by)}" if report.acknowledged_by else ""
    facts = (
        ("Environment", plain_text(incident.environment)),
        ("Level", f"{incident.level}, {incident.severity}"),
        ("Began", _moment(report.started_at)),
        ("Notified", _moment(report.detected_at) or "no person"),
        ("Acknowledged", _moment(report.acknowledged_at) + taken or "no"),
        ("Recovered", _moment(report.recovered_at) or "not yet: not all alerts are resolved"),
        ("Closed", _moment(incident.closed_at) or "not yet"),
    )
    actions = [_line(line) for line in report.actions] or ["No person changed anything."]
    parts = [
        f"# Incident {incident.pk}: {plain_text(title_of(incident))}",
        "\n".join(("| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts))),
        "## Actions",
        "\n".join(actions),
        "## Affected tenants",
        plain_text(report.counted),
        "\n".join(_tenants(report.tenants, report.more_tenants)),
        "## Limits",
        report.bound,
        f"Usage: {report.usage}",
        "## Timeline, UTC",
        "\n".join(_by_day(report.lines)),
    ]
    return "\n\n".join(parts) + "\n"


def _tenants(tenants: Iterable[AffectedTenant], more: int) -> list[str]:
    found = [f"- {plain_text(one.tenant)}: about {one.refused:,} refused" for one in tenants]
    if more:
        found.append(f"- and {more:,} more")
    return found or ["No such request of a tenant was sampled."]


def _by_day(lines: tuple[Line, ...]) -> list[str]:
    found = [f"The newest {MAX:,} lines.", ""] if len(lines) > MAX else []
    day = None
    for line in reversed(lines[:MAX]):
        if line.at.date() != day:
            day = line.at.date()
            found += [f"**{day:%-d %B %Y}**", ""]
        found.append(_line(line))
    return found or ["Nothing is stored about this time."]


def _line(line: Line) -> str:
    parts = [f"- {line.at.astimezone(UTC):%H:%M:%S} {plain_text(_sentence(line))}"]
    if line.detail:
        parts.append(f": {plain_text(line.detail)}")
    if line.who:
        parts.append(f" ({plain_text(line.who)})")
    if line.reason:
        parts.append(f", because: {plain_text(line.reason)}")
    return "".join(parts)


def _sentence(line: Line) -> str:
    """The event with the thing that it happened to, which pages show apart."""
    if not line.thing or line.thing in line.what:
        return line.what
    subject, _, did = line.what.partition(" ")
    return f"{subject} {line.thing} {did}" if subject == "Breaker" else f"{line.what} {line.thing}"


def plain_text(text: str) -> str:
    """A name or a note as one line of Markdown that is neither a link nor HTML."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _moment(at: datetime | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if at is not None else ""
