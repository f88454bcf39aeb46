"""Real servers for every test: started once, before anything reads Django's settings.

The agent's tests also run without Django; then only a Valkey is started. The servers are always
separate, whatever the environment configures, because tests empty them.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controlplane import embedded
from controlplane.embedded.valkey import Valkey

_session = ExitStack()

# Processes of the tests must flush their output themselves, as without this variable.
os.environ.pop("PYTHONUNBUFFERED", None)

# A busy machine makes an example slow, not wrong.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def _start() -> None:
    folder = Path(tempfile.mkdtemp(prefix="fuseboard-tests-"))
    _session.callback(shutil.rmtree, folder)
    # Without Django, or with ``-p no:django``.
    agents_alone = "pytest_django" not in sys.modules
    variables = ["FUSEBOARD_REDIS_URL"] if agents_alone else list(embedded.SERVERS)
    try:
        _session.enter_context(embedded.running(variables, folder=folder, forgetful=True))
    except embedded.ServerFailed as failure:
        raise pytest.UsageError(str(failure)) from failure
    if not agents_alone:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
        os.environ.setdefault("FUSEBOARD_SECRET_KEY", "tests-sign-with-this-and-nothing-else-does")
        import django

        django.setup()


# At import, not in a hook: the conftests of the folders below may import models.
atexit.register(_session.close)
_start()


def pytest_unconfigure() -> None:
    _session.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Continuous integration retries a failed test once, but never a property: its counterexample is a
    finding.
    """
    for item in items:
        if item.get_closest_marker("hypothesis"):
            item.add_marker(pytest.mark.flaky(reruns=0))


if "pytest_django" in sys.modules:
    _DJANGOS_OWN = {"django_content_type", "auth_permission"}

    @pytest.fixture(scope="session")
    def django_db_keepdb() -> bool:
        """The server ends with the session: dropping its database first only takes time."""
        return True

    @pytest.fixture(scope="session")
    def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
        """Tests empty every table between them, which the audit's triggers would refuse and record."""
        from django.core.management.commands import flush
        from django.db import connection

        from controlplane.audit.guards import TRUNCATED

        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT format('ALTER TABLE %%s DISABLE TRIGGER %%I', tgrelid::regclass, tgname)"
                " FROM pg_trigger WHERE tgname = %s OR tgname LIKE 'pgtrigger_never_emptied%%'",
                [TRUNCATED],
            )
            for (statement,) in cursor.fetchall():
                cursor.execute(statement)
        connection.ops.execute_sql_flush = _patient(connection.ops.execute_sql_flush)  # type: ignore[method-assign]
        flush.sql_flush = _sql_flush  # type: ignore[assignment]
        flush.emit_post_migrate_signal = lambda *_, **__: None  # type: ignore[assignment]

    def _sql_flush(_style: object, connection: Any, **_options: object) -> list[str]:
        """Only tables with rows; what Django fills itself stays. Emptying all of them took half of a test."""
        names = {*connection.introspection.django_table_names(only_existing=True, include_views=False)}
        looks = [
            f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})"  # noqa: S608 - names of tables
            for name in sorted(names - _DJANGOS_OWN)
        ]
        with connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(looks))
            filled = [name for (name,) in cursor.fetchall()]
        return [f"TRUNCATE {', '.join(filled)} CASCADE"] if filled else []

    def _patient(flush: Callable[[list[str]], None]) -> Callable[[list[str]], None]:
        """Emptying locks every table, and may wait for a page that is still being read."""

        def again(statements: list[str]) -> None:
            from django.db import OperationalError

            for _ in range(5):
                try:
                    return flush(statements)
                except OperationalError as error:
                    if "deadlock detected" not in str(error):
                        raise
            return flush(statements)

        return again


@pytest.fixture(scope="session")
def redis_url() -> str:
    """The address of the session's ``limits`` server."""
    return os.environ["FUSEBOARD_REDIS_URL"]


@pytest.fixture
def limits(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the ``limits`` server, which is empty."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A separate server for the test, to be stopped, killed or frozen."""
    server = Valkey(tmp_path)
    server.start()
    yield server
    server.stop()
