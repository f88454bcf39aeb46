"""``manage.py migrate`` has timeouts of its own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.core.management.commands.migrate import Command as Migrate
from django.db import connection
from django.db.migrations import Migration

from controlplane.management.commands import migrate
from controlplane.postgres import conninfo, session_lock

pytestmark = pytest.mark.django_db(transaction=True)


def show(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def test_migrations_have_their_own_timeouts_and_pages_theirs_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[list[str]] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: found.append([show(name) for name in TIMEOUTS]))
    call_command("migrate", verbosity=0)
    call_command("migrate", verbosity=0, statement_timeout="10min")
    assert found == [["30s", "3s", "0"], ["10min", "3s", "0"]]
    assert [show(name) for name in TIMEOUTS] == ["5s", "3s", "15s"]


@contextmanager
def locked(table: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(conninfo("test")) as other:
        other.execute(f"LOCK {table} IN ACCESS EXCLUSIVE MODE")  # type: ignore[call-overload]
        yield other


def _touch(*_: Any, **__: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE alerts_mute ADD COLUMN IF NOT EXISTS id bigint")


def test_a_migration_that_waits_for_a_lock_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Migrate, "handle", _touch)
    err = StringIO()
    with locked("alerts_mute") as other:
        # The other transaction ends while the command pauses.
        monkeypatch.setattr("time.sleep", lambda _: other.rollback())
        call_command("migrate", stderr=err, verbosity=0)
    assert err.getvalue().count("Trying again") == 1


def test_a_plan_that_waits_for_a_lock_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[None] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: ran.append(None))
    monkeypatch.setitem(migrate._OWN, "lock_timeout", "10ms")
    err = StringIO()
    with locked("django_migrations") as other:
        monkeypatch.setattr("time.sleep", lambda _: other.rollback())
        call_command("migrate", stderr=err, verbosity=0)
    assert err.getvalue().count("Trying again") == len(ran) == 1


def test_a_migration_that_postgres_ends_for_a_deadlock_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadlock = """DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$"""
    statements = iter([deadlock, "SELECT 1"])

    def run(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(next(statements))

    monkeypatch.setattr(Migrate, "handle", run)
    monkeypatch.setattr("time.sleep", lambda _: None)
    err = StringIO()
    call_command("migrate", stderr=err, verbosity=0)
    assert err.getvalue().count("Trying again") == 1
    assert not list(statements)


def test_a_lock_that_does_not_end_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Migrate, "handle", _touch)
    monkeypatch.setitem(migrate._OWN, "lock_timeout", "10ms")
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    with locked("alerts_mute"), pytest.raises(CommandError, match="pg_stat_activity"):
        call_command("migrate", stderr=StringIO(), verbosity=0)
    assert pauses == [1, 2, 4, 8, *[15] * 6]


def test_each_migration_has_its_own_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(migrate._OWN, "lock_timeout", "10ms")
    monkeypatch.setattr(migrate, "RETRIES", 2)
    monkeypatch.setattr("time.sleep", lambda _: None)
    first, second = Migration("1", "alerts"), Migration("2", "alerts")
    waiting = iter([first, first, second, second, second])

    def one_after_another(command: migrate.Command, *_: Any, **__: Any) -> None:
        command.verbosity = 0
        command.migration_progress_callback("apply_start", next(waiting))
        _touch()

    monkeypatch.setattr(Migrate, "handle", one_after_another)
    err = StringIO()
    with locked("alerts_mute"), pytest.raises(CommandError, match="pg_stat_activity"):
        call_command("migrate", stderr=err, verbosity=0)
    assert err.getvalue().count("Trying again, 2 times") == 2
    assert not list(waiting)


def test_a_migration_that_could_not_be_noted_is_undone_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django notes one with deferred statements, such as those of foreign keys, in another transaction."""
    call_command("migrate", "schedules", "zero", verbosity=0)
    monkeypatch.setitem(migrate._OWN, "lock_timeout", "50ms")
    with psycopg.connect(conninfo("test")) as other:
        # Migrations can be read and not noted.
        other.execute("LOCK django_migrations IN SHARE MODE")
        monkeypatch.setattr("time.sleep", lambda _: other.rollback())
        err = StringIO()
        call_command("migrate", "schedules", verbosity=0, stderr=err)
    assert err.getvalue().count("Trying again") == 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM django_migrations WHERE app = 'schedules'")
        assert cursor.fetchone() > (0,)


def test_a_statement_that_takes_too_long_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")

    monkeypatch.setattr(Migrate, "handle", sleep)
    with pytest.raises(CommandError, match=r"due to statement timeout.*--statement-timeout 10min"):
        call_command("migrate", verbosity=0, statement_timeout="50ms")


def test_a_statement_that_a_person_canceled_is_not_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def canceled(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(30)")

    monkeypatch.setattr(Migrate, "handle", canceled)
    with pytest.raises(CommandError, match=r"canceled a statement of migrate.*due to user request"):
        call_command("migrate", verbosity=0)


def test_a_timeout_is_checked_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: found.append(show("statement_timeout")))
    call_command("migrate", "--statement-timeout", "10 min", verbosity=0)
    assert found == ["10min"]
    with pytest.raises(CommandError, match="as Postgres writes it, such as 90s"):
        call_command("migrate", "--statement-timeout=10min -c search_path=other", verbosity=0)


def test_a_second_migrate_waits_until_the_first_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[None] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: ran.append(None))
    err = StringIO()
    with ExitStack() as first:
        assert first.enter_context(session_lock(migrate.LOCK))
        call_command("migrate", check_only=True, verbosity=0, stdout=StringIO())
        pauses: list[float] = []

        def pause(_: float) -> None:
            assert not ran
            pauses.append(1)
            if len(pauses) == 3:
                first.close()

        monkeypatch.setattr("time.sleep", pause)
        call_command("migrate", stderr=err, verbosity=0)
    # Postgres ends a session shortly after its client.
    assert len(pauses) >= 3
    assert err.getvalue().count("Another migrate is running") == len(ran) == 1


@pytest.mark.parametrize(
    ("before", "statement", "problem"),
    [
        ("SET ROLE pg_monitor", "CREATE TABLE public.x ()", "permission denied for schema public"),
        ("SET ROLE pg_monitor", "ALTER TABLE alerts_mute ADD x int", "must be owner of table alerts_mute"),
        ("SET default_transaction_read_only = on", "CREATE TABLE x ()", "in a read-only transaction"),
    ],
)
def test_a_role_or_server_that_cannot_change_tables_is_explained(
    monkeypatch: pytest.MonkeyPatch, before: str, statement: str, problem: str
) -> None:
    def run(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(before)
            cursor.execute(statement)

    monkeypatch.setattr(Migrate, "handle", run)
    with pytest.raises(CommandError, match=f"{problem}.*as the role that owns the tables"):
        call_command("migrate", verbosity=0)


def test_an_app_without_migrations_is_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[None] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: ran.append(None))
    call_command("migrate", "messages", run_syncdb=True, verbosity=0)
    assert ran
    with pytest.raises(CommandError, match="No app 'messages' has migrations"):
        call_command("migrate", "messages", verbosity=0)


def test_migrations_change_the_database_of_their_alias(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """Django's tests rename it, and the URL past the pooler still names the installation's."""
    settings.DIRECT_DATABASE = connection.settings_dict | {"NAME": "postgres"}
    found: list[str] = []

    def look(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_database()")
            found.extend(cursor.fetchone())

    monkeypatch.setattr(Migrate, "handle", look)
    call_command("migrate", verbosity=0)
    assert found == [connection.settings_dict["NAME"]]


@pytest.mark.parametrize("how", ["database", "server"])
def test_a_direct_url_of_another_database_migrates_nothing(
    monkeypatch: pytest.MonkeyPatch, settings: Any, how: str
) -> None:
    """An option of the URL can name another database, and another server can have one of this name."""
    options = connection.settings_dict["OPTIONS"]
    if how == "database":
        options = options | {"dbname": "postgres"}
    else:
        monkeypatch.setattr(
            migrate, "_WHICH", migrate._WHICH.replace("pg_postmaster_start_time", "clock_timestamp")
        )
    settings.DIRECT_DATABASE = connection.settings_dict | {"OPTIONS": options}
    ran: list[None] = []
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: ran.append(None))
    with pytest.raises(CommandError, match="reaches another database than DATABASE_URL"):
        call_command("migrate", verbosity=0)
    assert not ran
    assert show("statement_timeout") == "5s", "the pages keep their database and their timeouts"


@pytest.fixture
def pooled(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """A migration without changes; the role's timeouts end with the test."""
    monkeypatch.setattr(Migrate, "handle", lambda *_, **__: None)
    settings.DATABASE_POOLED = True
    yield
    settings.DATABASE_POOLED = False
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER ROLE CURRENT_USER IN DATABASE "{connection.settings_dict["NAME"]}" RESET ALL')


@pytest.mark.usefixtures("pooled")
def test_migrate_ends_idle_sessions_of_the_pool_and_no_lock_or_listener() -> None:
    with psycopg.connect(conninfo("lock"), autocommit=True) as lock:
        lock.execute("SELECT 1")
        with psycopg.connect(conninfo("gateway-rows"), autocommit=True) as pool:
            pool.execute("SELECT 1")
            call_command("migrate", verbosity=0)
            with pytest.raises(psycopg.OperationalError):
                pool.execute("SELECT 1")
        assert lock.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.usefixtures("pooled")
def test_migrate_asks_for_a_reconnect_where_it_may_not_end_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_END_IDLE", "SELECT 1 / 0 WHERE %s <> ALL(%s)")
    err = StringIO()
    call_command("migrate", stderr=err, verbosity=0)
    assert "Run RECONNECT in the pooler." in err.getvalue()
