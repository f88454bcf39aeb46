"""Django's ``migrate``, with a plan, past a pooler, and with timeouts that do not stop the pages."""

import re
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.core.management.commands.migrate import Command as Migrate
from django.db import DatabaseError, OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.exceptions import NodeNotFoundError
from psycopg import sql
from psycopg.errors import (
    DeadlockDetected,
    InsufficientPrivilege,
    LockNotAvailable,
    QueryCanceled,
    ReadOnlySqlTransaction,
)

from controlplane.database_url import TIMEOUTS, as_options
from controlplane.postgres import PAST_POOLER, session_lock
from controlplane.upgrades.plan import NoSuchMigration, Plan, applied_migrations, plan_of
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
#: Two at once would create the same tables.
LOCK, LOOK_AGAIN_S = "migrate", 1.0
_TIMEOUT = re.compile(r"[0-9]+(us|ms|s|min|h|d)?", re.ASCII)
_Done = TypeVar("_Done")

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
            type=_timeout,
            metavar="TIME",
            help=f"for statements that are not marked as long, as Postgres writes it, {STATEMENT_TIMEOUT} by"
            " default; 0 for none",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        own = _OWN | {"statement_timeout": options["statement_timeout"]}
        with _own_session(alias, own), _refusals_explained():
            if options["check_only"]:
                self._announce(alias, options)
            elif options["plan"] or options["check_unapplied"] or options["prune"]:
                self._run(alias, args, options)
            else:
                with self._alone():
                    self._announce(alias, options)
                    self._run(alias, args, options)
                    if settings.DATABASE_POOLED:
                        self._bound_pooled_sessions(alias)

    def migration_progress_callback(self, action: str, migration: Any = None, fake: bool = False) -> None:
        if action in ("apply_start", "unapply_start"):
            self._at = str(migration)
            if migration.atomic:
                # Django can note a migration after its transaction: one that ends between cannot run again.
                self._migration.enter_context(transaction.atomic(using=self._alias))
        elif action in ("apply_success", "unapply_success"):
            self._migration.close()
        super().migration_progress_callback(action, migration, fake)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait for another migrate of this database. This one then finds what is left to do."""
        waits = False
        while True:
            with session_lock(LOCK) as alone:
                if alone:
                    yield
                    return
            if not waits:
                self.stderr.write("Another migrate is running. This one begins when it has ended.")
                waits = True
            time.sleep(LOOK_AGAIN_S)

    def _announce(self, alias: str, options: Mapping[str, Any]) -> None:
        """Print the plan. Raises ``CommandError`` if it leaves out a required release."""

        def planned() -> Plan:
            return plan_of(
                connections[alias],
                options["app_label"],
                options["migration_name"],
                without_migrations=options["run_syncdb"],
            )

        try:
            plan = self._retried(alias, "the plan", options, planned)
        except NoSuchMigration as error:
            raise CommandError(str(error)) from error
        except NodeNotFoundError:
            _refuse_to_skip(applied_migrations(connections[alias]))
            raise
        if plan.applied and not plan.backwards and not options["fake"]:
            _refuse_to_skip(plan.applied)
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
        def run() -> None:
            super(Command, self).handle(*args, **options)

        self._retried(alias, "migrate", options, run)

    def _retried(self, alias: str, at: str, options: Mapping[str, Any], work: Callable[[], _Done]) -> _Done:
        """Each migration is tried again while another transaction has a lock: those before it are stored."""
        self._at, last, left = at, at, RETRIES
        self._alias = alias
        while True:
            try:
                with ExitStack() as self._migration:
                    return work()
            except OperationalError as error:
                if isinstance(error.__cause__, QueryCanceled):
                    raise CommandError(
                        f"Postgres canceled a statement of {self._at}, so it was undone: {_problem(error)}."
                        " Migrations before it are stored. A statement can take"
                        f" {options['statement_timeout']}. Run migrate again when few people edit, with"
                        " --statement-timeout 10min."
                    ) from error
                if not isinstance(error.__cause__, LockNotAvailable | DeadlockDetected):
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


def _timeout(text: str) -> str:
    """Without spaces, which would separate options of the session."""
    timeout = "".join(text.split())
    if not _TIMEOUT.fullmatch(timeout):
        raise ArgumentTypeError("must be a time as Postgres writes it, such as 90s, 10min or 0")
    return timeout


def _problem(error: BaseException) -> str:
    """The words of Postgres, in its language."""
    [problem, *_] = str(error).splitlines()
    return problem


@contextmanager
def _refusals_explained() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, InsufficientPrivilege | ReadOnlySqlTransaction):
            cause = cause.__cause__ or cause.__context__
        if not cause:
            raise
        raise CommandError(
            f"Postgres refuses: {_problem(cause)}. Migrations until here are stored. Run migrate on the"
            " primary, as the role that owns the tables and may CREATE in the schema."
        ) from error


def _refuse_to_skip(applied: Container[tuple[str, str]]) -> None:
    """Raises ``CommandError`` if a database with these migrations lacks a required release."""
    if stop := first_skipped(applied):
        raise CommandError(
            f"This database has not been at release {stop.release}, which no upgrade can leave out."
            f" Nothing was changed. Install release {stop.release}, run its migrate, start its processes,"
            " and then upgrade to this release."
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
    own["OPTIONS"] = given | {
        "options": f"{given.get('options', '')} {as_options(timeouts)}".strip(),
        # Another migrate ends idle sessions of the pooler, but none with this name.
        "application_name": "fuseboard-migrate",
    }
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
