"""The price of a model that applies now."""

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from controlplane.spending.models import Model, Price


@dataclass(frozen=True)
class DatedPrice:
    row: Price
    #: Whether it applies now, and whether it has begun: then it cannot change.
    applies: bool
    has_begun: bool


def dated_prices(model: Model, at: datetime | None = None) -> list[DatedPrice]:
    """Return the prices of a model, the newest first. ``at`` is when, by default now."""
    now = at or timezone.now()
    rows = sorted(model.prices.all(), key=lambda row: row.starts_at, reverse=True)
    present = next((row for row in rows if row.starts_at <= now), None)
    return [DatedPrice(row, row is present, row.starts_at <= now) for row in rows]
