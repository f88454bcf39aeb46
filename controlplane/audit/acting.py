"""Says to Postgres, for one transaction, that the application writes and will record it itself.

Rows of configuration and accounts that are written without it are recorded by a trigger: somebody
was in the database with SQL of their own. See ``audit/migrations``.
"""

from django.db import connection

from controlplane.audit.actor import Actor


def acting(actor: Actor) -> None:
    """For the rest of the current transaction, which there must be."""
    if not connection.in_atomic_block:
        raise RuntimeError("acting() says who makes a transaction, and there is none")
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('fuseboard.actor', %s, true)", [actor.name or "fuseboard"])
