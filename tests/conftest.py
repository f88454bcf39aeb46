"""Real servers for every test: started once, before anything reads Django's settings.

The agent's tests also run without Django; then only a Valkey is started. The servers are always
separate, whatever the environment configures, because tests empty them.
"""

import atexit
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

    @pytest.fixture(scope="session")
    def django_db_keepdb() -> bool:
        """The server ends with the session: dropping its database first only takes time."""
        return True

    @pytest.fixture(scope="session")
    def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
        from tests import database

        with django_db_blocker.unblock():
            database.prepare()

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
