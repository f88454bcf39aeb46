"""Gateway, worker and commands behind a real PgBouncer in transaction mode."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.controlplane.alerts.stores_down import PROJECT, Installation, Sink
from tests.controlplane.alerts.test_alerts_without_stores import evaluated, reporting, rows
from tests.controlplane.gateway.test_gateway_process import manage
from tests.controlplane.monitoring.monitoring_tools import tool
from tests.pgbouncer import PgBouncer
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

TIMEOUTS = {"statement_timeout": "5s", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "15s"}
SEAL = "from controlplane.series.sealing import seal; seal()"


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    yield sink
    sink.close()


@pytest.fixture
def installed(tmp_path: Path, sink: Sink) -> Iterator[Installation]:
    tool("pgbouncer")
    installed = Installation(tmp_path, sink)
    yield installed
    installed.close()


@pytest.fixture
def pooler(installed: Installation) -> Iterator[PgBouncer]:
    pooler = PgBouncer(installed.postgres)
    installed.variables |= {
        "DATABASE_URL": pooler.url,
        "FUSEBOARD_DATABASE_POOLED": "1",
        "FUSEBOARD_DIRECT_DATABASE_URL": installed.postgres.url,
    }
    yield pooler
    installed.kill_worker()
    for port in list(installed.gateways):
        installed.kill_gateway(port)
    pooler.close()


def timeouts(url: str) -> dict[str, str]:
    with psycopg.connect(url, autocommit=True) as connection:
        return {name: connection.execute(f"SHOW {name}").fetchone()[0] for name in TIMEOUTS}  # type: ignore[index,call-overload]


def shell(installed: Installation, script: str) -> str:
    command = [sys.executable, "manage.py", "shell", "--verbosity", "0", "-c", script]
    done = subprocess.run(
        command, cwd=PROJECT, env=installed.variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_pooled_sessions_have_timeouts_and_no_locks_after_migrate(
    installed: Installation, pooler: PgBouncer
) -> None:
    unbounded = "from controlplane.policies.models import Environment as E; E.objects.count()"
    assert "postgres.without_timeouts" in shell(installed, unbounded)
    assert set(timeouts(pooler.url).values()) == {"0"}
    manage(installed.variables, "migrate")
    wait_until(lambda: timeouts(pooler.url), "new sessions", accept=lambda found: found == TIMEOUTS)
    assert "postgres.without_timeouts" not in shell(installed, unbounded)
    for _ in range(3):
        shell(installed, SEAL)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    wait_until(lambda: rows(installed, held) == [(0,)], "no lock")


def test_gateway_and_worker_work_behind_it_and_survive_its_restart(
    installed: Installation, pooler: PgBouncer, sink: Sink
) -> None:
    manage(installed.variables, "migrate")
    installed.begin_worker()
    wait_until(lambda: evaluated(installed), "an evaluation", within_s=100)
    port = installed.begin_gateway()
    heard = "SELECT count(*) FROM fleet_server WHERE last_seen_at > now() - interval '5 s'"
    with reporting(installed, [port]):
        wait_until(lambda: rows(installed, heard) == [(3,)], "three pods", within_s=30)
        listening = "SELECT application_name FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        assert rows(installed, listening) == [("fuseboard-gateway-listen",)]
        for _ in range(3):
            pooler.kill()
            pooler.start()
            [(killed_at,)] = rows(installed, "SELECT now()")
            later = f"SELECT count(*) FROM alerts_evaluation WHERE at > '{killed_at}'"  # noqa: S608
            wait_until(lambda later=later: rows(installed, later) == [(1,)], "an evaluation", within_s=30)
            seen = f"SELECT count(*) FROM fleet_server WHERE last_seen_at > '{killed_at}'"  # noqa: S608
            wait_until(lambda seen=seen: rows(installed, seen) == [(3,)], "three pods", within_s=30)
    assert sink.counts() == {}
    logs = "".join((installed.folder / f"{name}.log").read_text() for name in ("gateway", "worker"))
    for word in (
        "DuplicatePreparedStatement",
        "prepared statement",
        "without_timeouts",
        "task_failed",
    ):
        assert word not in logs
