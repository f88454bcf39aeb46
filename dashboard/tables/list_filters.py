"""Filters of lists that the server divides into pages: all of them are in the address."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import TypeVar
from urllib.parse import urlencode

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest

#: The choices for ``period``.
PERIODS = (
    ("1h", "Last hour"),
    ("24h", "Last 24 hours"),
    ("7d", "Last 7 days"),
    ("30d", "Last 30 days"),
    ("", "All time"),
)
_HOURS = {"1h": 1, "24h": 24, "7d": 168, "30d": 720}
_LONGEST = 200

Row = TypeVar("Row", bound=Model)


def given_filters(request: HttpRequest, *names: str) -> dict[str, str]:
    """The filters that are not empty: bounded, and without NUL, which Postgres does not store."""
    asked = {name: request.GET.get(name, "")[:_LONGEST].replace("\x00", "").strip() for name in names}
    return {name: value for name, value in asked.items() if value}


def since_of(filters: Mapping[str, str]) -> datetime | None:
    """The beginning of the chosen period; ``None`` for all time."""
    hours = _HOURS.get(filters.get("period", ""))
    return datetime.now(UTC) - timedelta(hours=hours) if hours else None


def having(rows: QuerySet[Row], words: str, columns: Iterable[str]) -> QuerySet[Row]:
    """The rows of which one of the columns contains the words."""
    if not words:
        return rows
    return rows.filter(reduce(or_, (Q(**{f"{column}__icontains": words}) for column in columns)))


def in_period(rows: QuerySet[Row], filters: Mapping[str, str], column: str) -> QuerySet[Row]:
    since = since_of(filters)
    return rows.filter(**{f"{column}__gte": since}) if since else rows


def as_query(filters: Mapping[str, str], **changed: str) -> str:
    """``?`` and the filters, with some of them changed; an empty value removes one."""
    kept = {name: value for name, value in {**filters, **changed}.items() if value}
    return f"?{urlencode(kept)}" if kept else "?"
