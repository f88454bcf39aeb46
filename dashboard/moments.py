"""Times that people type, and times that pages show with the reader's own time as a tooltip."""

from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

#: For a refused text.
WRONG = "Enter a date and a time, in UTC or with an offset, such as 2030-01-31T18:00+01:00."


def moment_of(text: str) -> datetime:
    """A typed time: in UTC, unless it has an offset, which then counts. Raises ``ValueError``."""
    found = datetime.fromisoformat(text.strip())
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        raise ValueError(text) from None


def time_tag(at: datetime, shown: str) -> SafeString:
    """A time that the script gives a tooltip with the reader's local time."""
    return format_html(
        '<time datetime="{}" data-local="{}">{}</time>', at.isoformat(), int(at.timestamp()), shown
    )
