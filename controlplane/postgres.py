"""Postgres as the clock, the bell and the lock of every process: its time, NOTIFY, and advisory locks."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, cast

import psycopg
import structlog
from django.conf import settings
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from psycopg.conninfo import make_conninfo
from psycopg.errors import LockNotAvailable

from controlplane.database_url import TIMEOUTS, as_options
from controlplane.installation import COMMAND

log = structlog.get_logger(__name__)

#: Purposes of sessions that a pooler never has.
PAST_POOLER = ("lock", "hub", "gateway-listen", "migrate")
#: Options of a Django database that are for Django, not for libpq.
_DJANGO_OPTIONS = {"pool", "server_side_binding", "isolation_level", "assume_role"}
_NAMED = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
_LOCK = "SELECT pg_try_advisory_lock(%s)"
_LOCK_NAMED = "SELECT pg_try_advisory_lock(hashtext(%s))"
#: The number of rows that one statement deletes.
_MAX_DELETED = 20_000


def conninfo(purpose: str, *, direct: bool = False, statement_timeout_ms: int = 0) -> str:
    """How libpq reaches Django's database. ``direct``: past a pooler, for what needs a session.

    A pooled session keeps the timeouts of its role.
    """
    database = settings.DATABASES["default"]
    if direct and settings.DIRECT_DATABASE:
        database = settings.DIRECT_DATABASE | {"NAME": database["NAME"]}
    options = {name: v for name, v in database.get("OPTIONS", {}).items() if name not in _DJANGO_OPTIONS}
    options |= {name: database[key] for name, key in _NAMED.items() if database.get(key)}
    if statement_timeout_ms and not (settings.DATABASE_POOLED and not direct):
        # The last one counts.
        options["options"] = (
            f"{options.get('options', '')} -c statement_timeout={statement_timeout_ms}".strip()
        )
    return make_conninfo("", **options | {"application_name": f"fuseboard-{purpose}"})


@contextmanager
def session_lock(key: int | str) -> Iterator[bool]:
    """Yield whether no other process holds the lock. Raises ``django.db.Error``.

    The lock has its own connection, so it lasts over many transactions, and ends with the process.
    """
    with connection.wrap_database_errors:
        session = psycopg.connect(conninfo("lock", direct=True), autocommit=True)
    with session:
        with connection.wrap_database_errors:
            statement = _LOCK_NAMED if isinstance(key, str) else _LOCK
            alone = session.execute(statement, [key]).fetchone()
        yield alone == (True,)


def transaction_lock(name: str, key: str = "", *, wait: bool = True) -> bool:
    """Take the advisory lock of this name and key, which ends with the transaction.

    Returns whether it was taken: without ``wait``, another transaction can have it.
    """
    function = "pg_advisory_xact_lock" if wait else "pg_try_advisory_xact_lock"
    keys = [name, key] if key else [name]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {function}({', '.join(['hashtext(%s)'] * len(keys))})", keys)
        return wait or cursor.fetchone() == (True,)


def others_hold_lock(error: BaseException) -> bool:
    """Whether a statement has waited for too long for the lock of another transaction."""
    return isinstance(error.__cause__, LockNotAvailable)


def check_timeouts(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Log once if a pooler has dropped the timeouts: a session could then hold its locks for ever."""
    if connection.settings_dict["OPTIONS"].get("options", "") not in ("", as_options(TIMEOUTS)):
        # Migrations have their own, and DATABASE_URL may have others.
        return
    connection_created.disconnect(dispatch_uid="timeouts")
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        found = cursor.fetchone()
    if found == ("0",):
        hint = (
            f"Run {COMMAND} migrate, which sets them for the role, and RECONNECT in the pooler."
            if settings.DATABASE_POOLED
            else "DATABASE_URL names a pooler: set FUSEBOARD_DATABASE_POOLED, and what it needs."
        )
        log.error("postgres.without_timeouts", hint=hint)


def postgres_now() -> datetime:
    """The time that other processes compare stored moments with, whatever the clock of this one says."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        return cast(tuple[datetime], cursor.fetchone())[0]


def delete_rows(table: str, condition: str, values: Sequence[Any]) -> int:
    """Delete the rows that meet the condition, a part per statement; returns how many.

    ``table`` and ``condition`` are SQL of the caller, and the table has an ``id``.
    """
    statement = f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE {condition} LIMIT %s)"  # noqa: S608
    deleted = 0
    with connection.cursor() as cursor:
        while True:
            cursor.execute(statement, [*values, _MAX_DELETED])
            count = int(cursor.rowcount)
            deleted += count
            if count < _MAX_DELETED:
                return deleted


def notify(channel: str, payload: dict[str, Any]) -> None:
    """Send when the transaction commits. A notification without a listener is lost.

    ``channel`` is one of ``controlplane.notify_channels``.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [channel, json.dumps(payload)])
