"""A weekly summary as Markdown, for a ticket or a wiki. Names are text: none becomes a link or HTML."""

from datetime import timedelta

from controlplane.alerts.incidents.markdown import plain_text
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.sections import listed


def as_markdown(summary: WeeklySummary) -> str:
    last = summary.begins + timedelta(days=6)
    parts = [f"# Week of {summary.begins} to {last}, UTC: {plain_text(summary.environment)}"]
    for section in summary.sections:
        lines = listed(section, text=plain_text, bold="**")
        parts += [f"## {section['title']}", section["known"], lines]
    return "\n\n".join(parts) + "\n"
