"""NOTIFY: notify listening processes that something in Postgres has changed."""

import json
from typing import Any

from django.db import connection


def notify(channel: str, payload: dict[str, Any]) -> None:
    """Send when the transaction commits. A notification without a listener is lost.

    ``channel`` is one of ``controlplane.notify_channels``.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, json.dumps(payload)])
