"""Postgres as the clock and the bell of every process: its time, and NOTIFY for what has changed."""

import json
from datetime import datetime
from typing import Any, cast

from django.db import connection


def postgres_now() -> datetime:
    """The time that other processes compare stored moments with, whatever the clock of this one says."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        return cast(tuple[datetime], cursor.fetchone())[0]


def notify(channel: str, payload: dict[str, Any]) -> None:
    """Send when the transaction commits. A notification without a listener is lost.

    ``channel`` is one of ``controlplane.notify_channels``.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, json.dumps(payload)])
