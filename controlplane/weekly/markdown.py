"""A weekly summary as Markdown, for a ticket or a wiki. Names are text: none becomes a link or HTML."""

from datetime import timedelta
from typing import Any

from controlplane.alerts.incidents.markdown import plain_text
from controlplane.weekly.models import WeeklySummary


def as_markdown(summary: WeeklySummary) -> str:
    last = summary.begins + timedelta(days=6)
    parts = [f"# Week of {summary.begins} to {last}, UTC: {plain_text(summary.environment)}"]
    for section in summary.sections:
        parts += [f"## {section['title']}", section["known"], "\n".join(_lines(section))]
    return "\n\n".join(parts) + "\n"


def _lines(section: dict[str, Any]) -> list[str]:
    found = [
        f"- **{plain_text(line['name'])}**: {plain_text(line['found'])}."
        + (f" {plain_text(line['suggestion'])}" if line["suggestion"] else "")
        for line in section["lines"]
    ]
    if section["more"]:
        found.append(f"- and {section['more']:,} more")
    return found or [section["nothing"]]
