"""Marks a transaction in Postgres as the application's own, which records its changes itself.

Without the mark, a trigger records every change of a configuration or account row: someone used
SQL on the database directly. See ``audit/migrations``.
"""

from django.db import connection

from controlplane.audit.actor import Actor


def acting(actor: Actor) -> None:
    """Mark the rest of the current transaction. There must be one."""
    if not connection.in_atomic_block:
        raise RuntimeError("acting() needs a transaction: call it inside transaction.atomic()")
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', %s, true)", [actor.name or "fuseboard"])
