"""The tables of series that have no model, for tests."""

from django.db import connection


def empty() -> None:
    """Between the examples of one test."""
    tables = ("frame", "span", "10s", "1m", "1h", "tenant_hour", "entity", "writer", "seal")
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(f'series_{name}' for name in tables)}")


def stored(table: str) -> dict[tuple[int, object], list[int | None]]:
    """Thing and time -> values."""
    column = "day" if table == "series_1h" else "hour"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT entity, {column}, v FROM {table}")  # noqa: S608
        return {(entity, at): v for entity, at, v in cursor.fetchall()}
