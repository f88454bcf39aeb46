"""Two processes of ``manage.py migrate`` at the same time, as a job and a hand begin them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from controlplane.embedded.postgres import Postgres
from tests import migrated
from tests.controlplane.monitoring.monitoring_tools import tool
from tests.pgbouncer import PgBouncer
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

#: Processes begin slowly beside others.
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = tmp_path_factory.mktemp("postgres")
    migrated.copy_into(folder)
    server = Postgres(folder, durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def variables(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[dict[str, str]]:
    given = os.environ | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "DATABASE_URL": postgres.url,
        "FUSEBOARD_REDIS_URL": "redis://127.0.0.1:1",
        "FUSEBOARD_BROKER_URL": "redis://127.0.0.1:2",
        "FUSEBOARD_DATA_DIR": str(tmp_path),
    }
    if request.param == "direct":
        yield given
        return
    tool("pgbouncer")
    pooler = PgBouncer(postgres)
    yield given | {
        "DATABASE_URL": pooler.url,
        "FUSEBOARD_DATABASE_POOLED": "1",
        "FUSEBOARD_DIRECT_DATABASE_URL": postgres.url,
    }
    pooler.close()


class Migrator:
    def __init__(self, variables: dict[str, str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                # Not by manage.py, which waits for Redis. The checks load every page: half of the time.
                [sys.executable, "-m", "django", "migrate", "--skip-checks"],
                cwd=migrated.PROJECT,
                env=variables,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def printed(self) -> str:
        return self._output.read_text()

    def end(self) -> str:
        assert self.process.wait(PATIENCE_S) == 0, self.printed()
        return self.printed()


@contextmanager
def first_at_work(
    postgres: Postgres, variables: dict[str, str], folder: Path
) -> Iterator[tuple[Migrator, Migrator, psycopg.Connection]]:
    """One migrate that cannot end, one that waits for it, and what stands in the way."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP TABLE drills_drill")
        connection.execute("DELETE FROM django_migrations WHERE app = 'drills'")
    # A role behind a pooler has timeouts, which would end this session.
    with psycopg.connect(postgres.url, options="-c idle_in_transaction_session_timeout=0") as obstacle:
        # Migrations can be read and not noted.
        obstacle.execute("LOCK django_migrations IN SHARE MODE")
        both = [Migrator(variables, folder / name) for name in ("one", "other")]
        try:
            wait_until(lambda: any(map(works, both)), "a migration", within_s=PATIENCE_S)
            [first] = filter(works, both)
            [second] = set(both) - {first}
            words = "Another migrate is running"
            wait_until(lambda: words in second.printed(), "the second to wait", within_s=PATIENCE_S)
            yield first, second, obstacle
        finally:
            for one in both:
                one.process.kill()
                one.process.wait()


def works(migrator: Migrator) -> bool:
    return "Applying drills" in migrator.printed()


def drills(postgres: Postgres) -> tuple[int, int]:
    with psycopg.connect(postgres.url) as connection:
        [rows] = connection.execute("SELECT count(*) FROM drills_drill").fetchone() or ()
        [noted] = (
            connection.execute("SELECT count(*) FROM django_migrations WHERE app = 'drills'").fetchone() or ()
        )
    return rows, noted


@pytest.mark.parametrize("variables", ["pooled"], indirect=True)
def test_the_second_begins_when_the_first_has_ended(
    postgres: Postgres, variables: dict[str, str], tmp_path: Path
) -> None:
    with first_at_work(postgres, variables, tmp_path) as (first, second, obstacle):
        assert second.process.poll() is None
        obstacle.rollback()
        assert "OK" in first.end()
        printed = second.end()
    assert "Applying" not in printed
    assert "The database has every migration of this release: nothing to do." in printed
    assert drills(postgres) == (0, 1)


@pytest.mark.parametrize("variables", ["direct"], indirect=True)
def test_the_second_does_the_work_of_one_that_was_killed(
    postgres: Postgres, variables: dict[str, str], tmp_path: Path
) -> None:
    with first_at_work(postgres, variables, tmp_path) as (first, second, obstacle):
        first.process.kill()
        wait_until(lambda: works(second), "the second", within_s=PATIENCE_S)
        obstacle.rollback()
        second.end()
    assert drills(postgres) == (0, 1)
