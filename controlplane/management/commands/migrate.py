"""Django's ``migrate``, past a pooler, and with timeouts that do not stop the pages."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql
from psycopg.errors import LockNotAvailable

from controlplane.database_url import TIMEOUTS, as_options
from controlplane.postgres import PAST_POOLER

#: Statements that wait for a lock make all later ones of that table wait behind them.
_OWN = {
    "lock_timeout": TIMEOUTS["lock_timeout"],
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}
#: The tries take at least half a minute, and up to a minute.
TRIES, PAUSE_S = 10, 3.0

#: A database with this name on another server began at another moment.
_WHICH = """
    SELECT datname, oid, pg_postmaster_start_time() FROM pg_database WHERE datname = current_database()
"""
_HAS = """
    SELECT unnest(setconfig) FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND setrole = (SELECT oid FROM pg_roles WHERE rolname = %s)
"""
_END_IDLE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND usename = %s AND state = 'idle' AND pid <> pg_backend_pid()
        AND application_name <> ALL(%s)
"""


class Command(Migrate):
    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        with _own_session(alias):
            for left in reversed(range(TRIES)):
                try:
                    super().handle(*args, **options)
                    break
                except OperationalError as error:
                    if not isinstance(error.__cause__, LockNotAvailable):
                        raise
                    connections[alias].close()
                    if not left:
                        raise CommandError(
                            "Another transaction holds a lock for too long. Migrations until here are stored."
                            " End the transaction (pg_stat_activity names it), and run migrate again."
                        ) from error
                    self.stderr.write(
                        f"Another transaction holds a lock. Trying again, {left} times at most."
                    )
                    time.sleep(PAUSE_S)
            if settings.DATABASE_POOLED and not (options["plan"] or options["check_unapplied"]):
                self._bound_pooled_sessions(alias)

    def _bound_pooled_sessions(self, alias: str) -> None:
        """Give the role of the pooled sessions the timeouts that they cannot set themselves."""
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_user, current_database()")
            [user, database] = cursor.fetchone()
            role = settings.DATABASES[alias].get("USER") or user
            cursor.execute(_HAS, [role])
            if {setting for (setting,) in cursor.fetchall()} >= {
                f"{name}={v}" for name, v in TIMEOUTS.items()
            }:
                return
            wanted = [
                sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}")
                .format(*map(sql.Identifier, (role, database, name)), sql.Literal(value))
                .as_string(cursor.connection)
                for name, value in TIMEOUTS.items()
            ]
            try:
                cursor.execute(";".join(wanted))
            except DatabaseError as error:
                raise CommandError(
                    f"Run these as a role that may change {role}, and RECONNECT in the pooler:\n"
                    + ";\n".join(wanted)
                ) from error
            try:
                # The pooler opens new ones, which have them.
                cursor.execute(_END_IDLE, [role, [f"fuseboard-{purpose}" for purpose in PAST_POOLER]])
            except DatabaseError as error:
                self.stderr.write(
                    f"{role} has its timeouts, but idle sessions of the pooler do not: {error}\n"
                    "Run RECONNECT in the pooler."
                )


def _which(connection: BaseDatabaseWrapper) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(_WHICH)
        return tuple(cursor.fetchone())


@contextmanager
def _own_session(alias: str) -> Iterator[None]:
    """Raises ``CommandError`` if the URL past the pooler reaches another database than the pages."""
    connection = connections[alias]
    pages = _which(connection) if settings.DIRECT_DATABASE else None
    kept = connection.settings_dict
    # Both name the same database, and a test has renamed it here only.
    direct = {key: v for key, v in (settings.DIRECT_DATABASE or {}).items() if key not in ("NAME", "TEST")}
    own = kept | direct
    given = own.get("OPTIONS", {})
    own["OPTIONS"] = given | {"options": f"{given.get('options', '')} {as_options(_OWN)}".strip()}
    connection.close()
    connection.settings_dict = own
    try:
        if pages is not None and _which(connection) != pages:
            raise CommandError(
                "FUSEBOARD_DIRECT_DATABASE_URL reaches another database than DATABASE_URL, so nothing was"
                " migrated. Use the server and the database that the pooler uses."
            )
        yield
    finally:
        connection.close()
        connection.settings_dict = kept
