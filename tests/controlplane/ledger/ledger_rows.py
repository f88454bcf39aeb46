"""Rows of the ledger, without pods."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

from controlplane.ledger.models import UsageDay, UsageHour, UsageTotal, Whose
from controlplane.ledger.rows import AMOUNTS

USUAL = {"environment": "production", "model": "gpt-5.2", "dependency": "openai"}


def _columns(numbers: dict[str, Any]) -> dict[str, Any]:
    return {**USUAL, **dict.fromkeys(AMOUNTS, 0), "calls": 1, **numbers}


def put_hour(at: datetime, *, service: str = "shop", **numbers: Any) -> None:
    """Calls of a service."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    UsageHour.objects.create(at=hour, whose=Whose.SERVICE, name=service, **_columns(numbers))


def put_day(day: date, *, tenant: str = "acme-retail", **numbers: Any) -> None:
    columns = _columns(numbers)
    UsageDay.objects.create(day=day, tenant=tenant, **columns)
    amounts = {name: columns[name] for name in AMOUNTS}
    total, made = UsageTotal.objects.get_or_create(
        environment=USUAL["environment"], day=day, defaults=amounts
    )
    if not made:
        for name, number in amounts.items():
            setattr(total, name, getattr(total, name) + number)
        total.save()


def today() -> date:
    return datetime.now(UTC).date()


def days_ago(number: int) -> date:
    return today() - timedelta(days=number)
