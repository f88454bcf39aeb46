"""Times that people type, and times that pages show with the reader's own time as a tooltip."""

from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

#: The error for a refused text.
WRONG = "Enter a date and a time from 2000 to 2999, in UTC or with an offset, such as 2030-01-31T18:00+01:00."
#: Accepted years, as in the API. At the ends of the calendar, another time zone can be no time at all.
_YEARS = range(2000, 3000)


def moment_of(text: str) -> datetime:
    """A typed time from 2000 to 2999: in UTC, unless it has an offset. Raises ``ValueError``."""
    found = datetime.fromisoformat(text.strip())
    if found.year not in _YEARS:
        raise ValueError(text)
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    return found.astimezone(UTC)


def time_tag(at: datetime, shown: str) -> SafeString:
    """A time that the script gives a tooltip with the reader's local time."""
    return format_html(
        '<time datetime="{}" data-local="{}">{}</time>', at.isoformat(), int(at.timestamp()), shown
    )
