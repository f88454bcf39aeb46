"""``manage.py gateway`` as a process, with a separate Postgres that is killed and started again."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import psutil
import psycopg
import pytest

from controlplane.embedded.postgres import Postgres
from fuseboard.contract.sync import SYNC_PATH, Applied, decode_response
from fuseboard.contract.words import Mode
from tests import migrated
from tests.controlplane.gateway.manual_gateway import TOKEN, beat
from tests.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[3]

SEED = f"""
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from controlplane.accounts.models import AgentToken
from controlplane.editing import edits
from tests.people import SEED
edits.create_environment(environment="production", reason="for a test", actor=SEED)
edits.create_tenant(environment="production", tenant="acme", tier="pro", reason="for a test", actor=SEED)
AgentToken.objects.create(
    name="pods", selector="sel1", environment="production",
    digest=sha256({TOKEN.split("_", 2)[2]!r}.encode()).hexdigest(),
    expires_at=datetime.now(UTC) + timedelta(days=1),
)
"""

EDIT = """
from controlplane.editing import edits
from tests.people import SEED
edits.create_tenant(environment="production", tenant="later", tier="pro", reason="for a test", actor=SEED)
"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    folder = tmp_path_factory.mktemp("postgres")
    migrated.copy_into(folder)
    server = Postgres(folder, durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def variables(postgres, redis_url):
    """The environment of processes that use this Postgres, in which one tenant is configured."""
    configured = os.environ | {"DATABASE_URL": postgres.url, "FUSEBOARD_BEAT_MS": "200"}
    manage(configured, "shell", "--verbosity", "0", "-c", SEED)
    return configured


@pytest.fixture
def gateway(variables, postgres):
    """The process, and a client that speaks to it."""
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DELETE FROM fleet_server")
    command = [sys.executable, "manage.py", "gateway", "--port", "0"]
    with subprocess.Popen(
        command, cwd=PROJECT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            port = re.search(r":(\d+)/", process.stdout.readline())[1]
            headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
                wait_until(lambda: answers(client, "/readyz"))
                yield process, client
        finally:
            process.kill()  # or leaving the block would wait for ever


def manage(variables, *arguments):
    subprocess.run([sys.executable, "manage.py", *arguments], cwd=PROJECT, env=variables, check=True)


def answers(client, path):
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


def sync(client, **fields):
    answer = client.post(SYNC_PATH, content=msgspec.json.encode(beat(**fields)))
    assert answer.status_code == 200, answer.text
    return decode_response(answer.content)


def rows(postgres):
    with psycopg.connect(postgres.url) as connection:
        return dict(connection.execute("SELECT name, mode FROM fleet_server").fetchall())


def test_it_serves_from_memory_while_postgres_is_dead_and_catches_up_after(gateway, postgres, variables):
    _, client = gateway
    first = sync(client)
    assert first.next_ms == 200
    wait_until(lambda: rows(postgres) == {"pod-1": "shared"})

    postgres.process.send_signal(signal.SIGKILL)
    postgres.process.wait()
    for n in range(30):
        # From memory: the client waits five seconds at most, and a connection to Postgres longer.
        answer = sync(client, server=f"pod-{n % 3}", mode=Mode.LOCAL, want=("acme",))
        assert answer.head == first.head
        assert answer.tenants["acme"].tier == "pro"
        time.sleep(0.05)
    assert answers(client, "/readyz")

    postgres.start()
    wait_until(lambda: rows(postgres) == {f"pod-{n}": "local" for n in range(3)})
    manage(variables, "shell", "--verbosity", "0", "-c", EDIT)
    head = first.head
    applied = Applied(epoch=head.epoch, revision=head.revision, hash=head.hash)
    # Not as often as one pod may.
    changed = wait_until(lambda: sync(client, applied=applied).tenants, every_s=0.2)
    assert changed["later"].tier == "pro"


def test_a_frozen_postgres_delays_no_heartbeat(gateway, postgres):
    _, client = gateway
    sync(client)
    wait_until(lambda: rows(postgres) == {"pod-1": "shared"})
    with frozen(psutil.Process(postgres.process.pid)):
        deadline = time.monotonic() + 4.0  # longer than the gateway waits for one batch
        while time.monotonic() < deadline:
            sync(client, mode=Mode.RAMPING)  # whose client waits five seconds at most
            time.sleep(0.05)
    wait_until(lambda: rows(postgres) == {"pod-1": "ramping"})


@contextlib.contextmanager
def frozen(postmaster):
    """Suspend a postmaster, which then starts no process, and after it its children."""
    postmaster.suspend()
    children = postmaster.children(recursive=True)
    try:
        signal_all(children, psutil.Process.suspend)
        yield
    finally:
        signal_all(children, psutil.Process.resume)
        postmaster.resume()


def signal_all(processes, signal_of):
    for process in processes:
        # A backend whose client has just gone may end by itself.
        with contextlib.suppress(psutil.NoSuchProcess):
            signal_of(process)


def test_answers_do_not_name_the_server_software(gateway):
    _, client = gateway
    answer = client.get("/healthz")
    assert answer.json() == {"status": "ok"}
    assert "server" not in answer.headers


def test_a_truncated_body_disturbs_no_other_client(gateway):
    _, client = gateway
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as half:
        half.sendall(
            f"POST {SYNC_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            'Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"environment"'.encode()
        )
        assert sync(client).next_ms == 200
    assert sync(client).next_ms == 200


def test_it_writes_its_last_batch_before_it_exits(gateway, postgres):
    process, client = gateway
    sync(client)
    wait_until(lambda: rows(postgres))
    sync(client, server="pod-last")
    process.terminate()
    assert process.wait(10) in (0, -signal.SIGTERM)
    assert "pod-last" in rows(postgres)
