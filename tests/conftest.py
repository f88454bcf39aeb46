"""Real servers for every test: started once, before anything reads Django's settings.

The agent's tests also run without Django; then only a Valkey is started. The servers are always
separate, whatever the environment configures, because tests empty them.
"""

import argparse
import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from controlplane import embedded
from controlplane.embedded.valkey import Valkey
from tests.distribution import InGroups, longest_first
from tests.waiting import PATIENCE_S

_session = ExitStack()

# Processes of the tests must flush their output themselves, as without this variable.
os.environ.pop("PYTHONUNBUFFERED", None)

# A busy machine makes an example slow, not wrong.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


# Without Django, or with ``-p no:django``.
_agents_alone = "pytest_django" not in sys.modules


def _start() -> None:
    folder = Path(tempfile.mkdtemp(prefix="fuseboard-tests-"))
    _session.callback(shutil.rmtree, folder)
    variables = ["FUSEBOARD_REDIS_URL"] if _agents_alone else list(embedded.SERVERS)
    if not _agents_alone:
        from tests import migrated

        migrated.copy_into(folder / embedded.SERVERS["DATABASE_URL"][0])
    try:
        _session.enter_context(embedded.running(variables, folder=folder, forgetful=True))
    except embedded.ServerFailed as failure:
        raise pytest.UsageError(str(failure)) from failure


def _only_distributes() -> bool:
    """Whether this process of ``pytest -n 2`` runs no test itself. Its workers have servers each."""
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("-n", "--numprocesses", default="0")
    chosen, _ = options.parse_known_args(sys.argv[1:])
    return chosen.numprocesses != "0" and "PYTEST_XDIST_WORKER" not in os.environ


# At import, not in a hook: the conftests of the folders below may import models.
atexit.register(_session.close)
if not _only_distributes():
    # Modules and collected tests stay until the end: no search for garbage walks over them.
    gc.disable()
    _start()
if not _agents_alone:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    # The tests run as in production: nothing else says where their pages are reached.
    os.environ.setdefault("FUSEBOARD_PLAIN_HTTP", "0")
    os.environ.setdefault("FUSEBOARD_SECRET_KEY", "tests-sign-with-this-and-nothing-else-does")
    import django

    django.setup()
    if _only_distributes():
        # A worker reads its settings once it has servers, as this conftest does.
        del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_collection_finish() -> None:
    """Search for garbage among what tests make, as applications do."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    _session.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InGroups | None:
    return InGroups(config, log) if config.getoption("dist") == "loadgroup" else None


if "pytest_django" in sys.modules:

    @pytest.fixture(scope="session")
    def django_db_setup(django_test_environment: None, django_db_blocker: Any) -> Iterator[None]:
        """The database is there and migrated: see ``tests.migrated``."""
        from django.conf import settings
        from django.db import connection

        from tests import database, migrated

        connection.close()
        for known in (settings.DATABASES["default"], connection.settings_dict):
            known["NAME"] = migrated.TEST_DATABASE
            # Two seconds are short for a Postgres that waits for a busy machine.
            known["OPTIONS"] = known["OPTIONS"] | {"connect_timeout": int(PATIENCE_S)}
        with django_db_blocker.unblock():
            database.prepare()
        yield
        database.close()

    @pytest.fixture(autouse=True)
    def watched_figures_read_again() -> None:
        """A process keeps them for 30 s; the next test has other rows."""
        from controlplane.status.read_watched import forget

        forget()

    @pytest.fixture(scope="session", autouse=True)
    def static_files_found_once() -> Iterator[None]:
        """Every client of a test loads the middleware, which looks for all static files."""
        from whitenoise.middleware import WhiteNoiseMiddleware

        found: dict[str, Any] = {}
        look = WhiteNoiseMiddleware.add_files_from_finders

        def look_once(self: Any) -> None:
            if not found:
                look(self)
                found.update(self.files)
            self.files.update(found)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", look_once)
            yield


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


@pytest.fixture(autouse=True)
def no_pause_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents of this process wait 5 s for Redis, unless a test publishes a deadline of its own.

    A busy machine pauses for longer than the default deadline of 5 ms, and for longer than the 50 ms that a
    published policy may wait. The agent then decides single calls by itself, and a test that expects exact
    numbers or a shared decision fails, or passes by chance. Tests of the deadline use other values.

    Threads that wait for their agent, and reads of the configuration, wait as long. So do locks, idempotency
    keys and backlogs: tests of their deadline have the fixture ``usual_answers``.
    """
    # Here, not above: Django must be ready first.
    from fuseboard.configuration.current_configuration import Configuration
    from tests.patient_pods import PATIENCE_US, patiently, primitives_wait, store_waits

    monkeypatch.setattr(Configuration, "apply", patiently(Configuration.apply))
    store_waits(monkeypatch)
    for name in ("agent_api.threads.LATE_S", "configuration.redis_source.IO_TIMEOUT_S"):
        monkeypatch.setattr(f"fuseboard.{name}", PATIENCE_US / 1e6)
    primitives_wait(monkeypatch, PATIENCE_US / 1e6)


@pytest.fixture
def usual_answers(no_pause_is_an_outage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let locks, idempotency keys and backlogs wait for Redis as in an application: for tests of it."""
    from tests.patient_pods import USUAL_ANSWER_S, primitives_wait

    primitives_wait(monkeypatch, USUAL_ANSWER_S)


@pytest.fixture(autouse=True)
def agents_start_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the start of an agent in this process wait for the first answer of Redis.

    An agent waits half a second, then decides alone until Redis answers. A busy machine takes longer, and
    a test that counts in Redis misses the first calls. Where Redis refuses, no agent waits.
    """
    monkeypatch.setattr("fuseboard.runtime.CONNECT_S", PATIENCE_S)
