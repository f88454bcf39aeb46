"""``manage.py migrate`` has timeouts of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.core.management.commands.migrate import Command as Migrate
from django.db import connection

from controlplane.management.commands import migrate
from controlplane.postgres import conninfo

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
    waiting = iter(["alerts.1", "alerts.1", "alerts.2", "alerts.2", "alerts.2"])

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


def test_a_statement_that_takes_too_long_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(*_: Any, **__: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(30)")

    monkeypatch.setattr(Migrate, "handle", sleep)
    with pytest.raises(CommandError, match="--statement-timeout 10min"):
        call_command("migrate", verbosity=0, statement_timeout="50ms")


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
