"""Pages of long lists, newest first."""

from typing import Any

from django.db.models import Model, QuerySet


def newest_page(
    rows: QuerySet[Any, Model], limit: int, *, before: int | None = None, key: str = "id"
) -> dict[str, Any]:
    """Rows below ``before``, at most ``limit``. ``next`` is the ``before`` of the next page, or ``None``."""
    if before:
        rows = rows.filter(**{f"{key}__lt": before})
    found = list(rows.order_by(f"-{key}")[: limit + 1])
    more = len(found) > limit
    return {"items": found[:limit], "next": getattr(found[limit - 1], key) if more else None}
