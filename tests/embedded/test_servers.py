import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from controlplane import embedded
from controlplane.embedded import children, postgres, reachable
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.valkey import Valkey
from tests.waiting import wait_until

PROJECT = Path(__file__).resolve().parents[2]

HOLDER = """
import json, os, sys, time
from pathlib import Path
from controlplane import embedded
with embedded.running(["FUSEBOARD_REDIS_URL"], folder=Path(sys.argv[1])) as urls:
    print(json.dumps(urls), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], str]]]:
    """Starts processes that use an embedded Valkey until their stdin closes."""
    started: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], str]:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        started.append(holder)
        return holder, json.loads(holder.stdout.readline())["FUSEBOARD_REDIS_URL"]

    yield start
    for holder in started:
        with holder:
            holder.kill()


def test_a_second_start_finds_the_data_of_the_first(tmp_path):
    with embedded.running(["DATABASE_URL"], folder=tmp_path, forgetful=True) as urls:
        with psycopg.connect(urls["DATABASE_URL"]) as database:
            database.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        assert os.environ["DATABASE_URL"] == urls["DATABASE_URL"]
    with (
        embedded.running(["DATABASE_URL"], folder=tmp_path, forgetful=True) as urls,
        psycopg.connect(urls["DATABASE_URL"]) as database,
    ):
        assert database.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_only_unconfigured_servers_are_started(tmp_path, monkeypatch):
    for variable in embedded.SERVERS:
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "url").write_text("redis://10.0.0.1:6379\n")
    monkeypatch.setenv("FUSEBOARD_REDIS_URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("DATABASE_URL", "postgresql://db.example.com/fuseboard")
    assert embedded.unconfigured() == ["FUSEBOARD_BROKER_URL"]


def test_servers_refuse_connections_without_the_password(redis_url):
    without = redis_url.replace(redis_url[redis_url.index(":", 8) : redis_url.index("@")], "")
    with redis.Redis.from_url(without.replace("//@", "//")) as client, pytest.raises(redis.RedisError):
        client.ping()


def test_the_server_stops_when_its_last_user_leaves(tmp_path):
    with embedded.running(["FUSEBOARD_BROKER_URL"], folder=tmp_path):
        running = embedded.look_up("FUSEBOARD_BROKER_URL", folder=tmp_path)
        assert psutil.pid_exists(running.server)
    assert not psutil.pid_exists(running.server)
    assert not psutil.pid_exists(running.keeper)
    with pytest.raises(embedded.ServerFailed):
        embedded.look_up("FUSEBOARD_BROKER_URL", folder=tmp_path)


def test_a_second_process_joins_and_the_last_one_out_stops_the_server(hold):
    first, url = hold()
    second, same_url = hold()
    assert url == same_url
    first.stdin.close()
    first.wait(30)
    with redis.Redis.from_url(url) as client:
        assert client.ping()
    second.stdin.close()
    second.wait(30)
    assert children.port_is_free(int(url.rpartition(":")[2].split("/")[0]))


def test_a_killed_user_leaves_no_server_behind(hold, tmp_path):
    holder, _url = hold()
    running = embedded.look_up("FUSEBOARD_REDIS_URL", folder=tmp_path)
    holder.kill()
    wait_until(lambda: not psutil.pid_exists(running.server) and not psutil.pid_exists(running.keeper))


def test_a_killed_keeper_ends_its_server_and_the_next_user_starts_another(hold, tmp_path):
    _holder, _url = hold()
    running = embedded.look_up("FUSEBOARD_REDIS_URL", folder=tmp_path)
    os.kill(running.keeper, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(running.server))
    _other, url = hold()
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def test_a_killed_server_comes_back_at_its_address(tmp_path):
    with embedded.running(["FUSEBOARD_REDIS_URL"], folder=tmp_path) as urls:
        before = embedded.look_up("FUSEBOARD_REDIS_URL", folder=tmp_path)
        os.kill(before.server, signal.SIGKILL)
        after = embedded.revive("FUSEBOARD_REDIS_URL", folder=tmp_path)
        assert (after.url, after.keeper) == (before.url, before.keeper)
        with redis.Redis.from_url(urls["FUSEBOARD_REDIS_URL"]) as client:
            assert client.ping()


def test_a_port_taken_by_another_program_is_replaced(valkey, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    other = Valkey(tmp_path / "other")
    offers = iter([valkey.port, children.free_port()])
    monkeypatch.setattr("controlplane.embedded.valkey.free_port", lambda: next(offers))
    other.start()
    try:
        assert other.port not in (0, valkey.port)
    finally:
        other.stop()


def test_postgres_killed_with_its_lock_file_left_behind_starts_again(tmp_path):
    server = Postgres(tmp_path, durable=False)
    server.start()
    try:
        children.kill_group(server.process)
        server.process.wait()
        # The number in the lock file belongs to a live process that is not Postgres.
        lock = server.data / "postmaster.pid"
        lock.write_text(lock.read_text().replace(str(server.process.pid), str(os.getppid()), 1))
        server.start()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()


def test_an_unreachable_server_is_named_by_its_variable_without_its_password(redis_url):
    port = children.free_port()
    for variable, url in (
        ("DATABASE_URL", f"postgresql://u:secret@127.0.0.1:{port}/db"),
        ("FUSEBOARD_REDIS_URL", f"redis://:secret@127.0.0.1:{port}/0"),
    ):
        sentence = reachable.problem(variable, url)
        assert sentence is not None
        assert variable in sentence
        assert str(port) in sentence
        assert "secret" not in sentence
    assert reachable.problem("FUSEBOARD_REDIS_URL", redis_url) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts Postgres as another user")
def test_root_is_told_which_folder_is_closed_to_postgres(tmp_path, monkeypatch):
    closed = tmp_path / "environment"
    closed.mkdir(mode=0o700)
    initdb = closed / "initdb"
    initdb.write_text("#!/bin/sh\nexit 1\n")
    initdb.chmod(0o755)
    monkeypatch.setattr(postgres, "_program", lambda name: closed / name)
    (tmp_path / "data").mkdir()
    with pytest.raises(embedded.ServerFailed, match="initdb failed") as failure:
        Postgres(tmp_path / "data").start()
    said = str(failure.value)
    assert f"{closed}`, install in another folder" in said
    assert "chmod o+x" in said
    assert "DATABASE_URL" in said


def test_a_missing_file_of_an_address_is_named_by_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_URL_FILE", str(tmp_path / "missing"))
    with pytest.raises(embedded.ServerFailed, match="DATABASE_URL_FILE names a file that cannot be read"):
        embedded.unconfigured()
