"""Django's ``migrate``, with a plan, past a pooler, and with timeouts that do not stop the pages."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands.migrate import Command as Migrate
from django.db import DatabaseError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import sql
from psycopg.errors import LockNotAvailable, QueryCanceled

from controlplane.database_url import TIMEOUTS, as_options
from controlplane.postgres import PAST_POOLER
from controlplane.upgrades.plan import NoSuchMigration, Plan, plan_of
from controlplane.upgrades.required_stops import first_skipped

#: Statements that wait for a lock make all later ones of that table wait behind them.
_OWN = {
    "lock_timeout": TIMEOUTS["lock_timeout"],
    "idle_in_transaction_session_timeout": "0",
}
#: A statement that is not in a ``Long`` operation may lock its table for all others meanwhile.
STATEMENT_TIMEOUT = "30s"
#: Further tries of one migration, and the longest pause before one. Pauses begin with 1 s and double.
RETRIES, MAX_PAUSE_S = 10, 15.0

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
    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--check-only",
            action="store_true",
            help="print what it would do and change nothing; exits with 0 if it could begin, also with"
            " nothing to do, and with 1 if it would refuse",
        )
        parser.add_argument(
            "--statement-timeout",
            default=STATEMENT_TIMEOUT,
            metavar="TIME",
            help=f"for statements that are not marked as long, as Postgres writes it, {STATEMENT_TIMEOUT} by"
            " default; 0 for none",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        own = _OWN | {"statement_timeout": options["statement_timeout"]}
        with _own_session(alias, own):
            shows = options["plan"] or options["check_unapplied"] or options["prune"]
            if options["check_only"] or not shows:
                self._announce(alias, options)
            if options["check_only"]:
                return
            self._run(alias, args, options)
            if settings.DATABASE_POOLED and not shows:
                self._bound_pooled_sessions(alias)

    def migration_progress_callback(self, action: str, migration: Any = None, fake: bool = False) -> None:
        if action in ("apply_start", "unapply_start"):
            self._at = str(migration)
        super().migration_progress_callback(action, migration, fake)

    def _announce(self, alias: str, options: Mapping[str, Any]) -> None:
        """Print the plan. Raises ``CommandError`` if it leaves out a required release."""
        try:
            plan = plan_of(connections[alias], options["app_label"], options["migration_name"])
        except NoSuchMigration as error:
            raise CommandError(str(error)) from error
        stop = first_skipped(plan.applied) if plan.applied and not plan.backwards else None
        if stop and not options["fake"]:
            raise CommandError(
                f"This database has not been at release {stop.release}, which no upgrade can leave out."
                f" Nothing was changed. Install release {stop.release}, run its migrate, start its processes,"
                " and then upgrade to this release."
            )
        if options["check_only"] or (options["verbosity"] and plan.applied):
            self._print(plan)

    def _print(self, plan: Plan) -> None:
        say = self.stdout.write
        if plan.unknown:
            say(
                f"A later release has migrated this database: {', '.join(plan.unknown)}."
                " migrate does not undo what it does not know."
            )
        if not plan.steps:
            say("The database has every migration of this release: nothing to do.")
        elif not plan.applied:
            say(f"The database is empty. {len(plan.steps)} migrations create its tables.")
        else:
            say(f"Migrations to {'undo' if plan.backwards else 'apply'}: {len(plan.steps)}")
            for step in plan.steps:
                say(f"  {step}")

    def _run(self, alias: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Each migration is tried again while another transaction has a lock: those before it are stored."""
        self._at, last, left = "", "", RETRIES
        while True:
            try:
                super().handle(*args, **options)
                return
            except OperationalError as error:
                if isinstance(error.__cause__, QueryCanceled):
                    raise CommandError(
                        f"A statement of {self._at} took longer than {options['statement_timeout']}, so it"
                        " was undone. Migrations before it are stored. Run migrate again when few people"
                        " edit, with --statement-timeout 10min."
                    ) from error
                if not isinstance(error.__cause__, LockNotAvailable):
                    raise
                connections[alias].close()
                if self._at != last:
                    last, left = self._at, RETRIES
                if not left:
                    raise CommandError(
                        "Another transaction holds a lock for too long. Migrations until here are stored."
                        " End the transaction (pg_stat_activity names it), and run migrate again."
                    ) from error
                self.stderr.write(f"Another transaction holds a lock. Trying again, {left} times at most.")
                time.sleep(min(2.0 ** (RETRIES - left), MAX_PAUSE_S))
                left -= 1

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
def _own_session(alias: str, timeouts: Mapping[str, str]) -> Iterator[None]:
    """Raises ``CommandError`` if the URL past the pooler reaches another database than the pages."""
    connection = connections[alias]
    pages = _which(connection) if settings.DIRECT_DATABASE else None
    kept = connection.settings_dict
    # Both name the same database, and a test has renamed it here only.
    direct = {key: v for key, v in (settings.DIRECT_DATABASE or {}).items() if key not in ("NAME", "TEST")}
    own = kept | direct
    given = own.get("OPTIONS", {})
    own["OPTIONS"] = given | {"options": f"{given.get('options', '')} {as_options(timeouts)}".strip()}
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
