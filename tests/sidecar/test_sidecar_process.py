"""The command `fuseboard sidecar` as a process."""

import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import redis

from fuseboard.cli import main
from fuseboard.contract import keys
from fuseboard.sidecar import app
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.sidecar.processes import sidecar
from tests.waiting import PATIENCE_S, wait_until

FAILURES = BREAKER.consecutive_failures


def test_a_sidecar_decides_follows_its_token_and_reports_before_it_ends(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, POLICY, revision=7)
    with sidecar(redis_url, tmp_path) as one:
        status, body = wait_until(
            lambda: one.post("/v1/calls", '{"dependency": "payments"}'),
            # The start waits half a second for Redis.
            accept=lambda found: '"mode":"shared"' in found[1] and '"revision":7' in found[1],
        )
        assert (status, '"allowed":true' in body) == (200, True)
        one.token_file.write_text("rotated\n")
        wait_until(lambda: one.post("/v1/reports", "[]")[0] == 401)
        permit = body.partition('"permit":"')[2].partition('"')[0]
        one.token = "rotated"
        further = [one.post("/v1/calls", '{"dependency": "payments"}')[1] for _ in range(FAILURES - 1)]
        permits = [permit, *(found.partition('"permit":"')[2].partition('"')[0] for found in further)]
        report = ",".join(f'{{"permit": "{permit}", "status": 503}}' for permit in permits)
        accepted = f'{{"accepted":{FAILURES},"unknown":[],"invalid":[]}}'
        assert one.post("/v1/reports", f"[{report}]") == (200, accepted)
        assert one.ready() == 200
        # As a sidecar container, it gets the signal when the application has ended: it does not wait long.
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(PATIENCE_S) == 0
    # The reports have reached Redis.
    state = limits.get(keys.breaker("production", "payments"))
    assert isinstance(state, bytes)
    assert state.startswith(b"open ")


def test_a_sidecar_without_room_on_its_disk_decides_on_by_the_newest_configuration(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, POLICY, revision=7)
    with sidecar(redis_url, tmp_path) as one:

        def has_the_edit() -> bool:
            status, body = one.post("/v1/calls", '{"dependency": "payments"}')
            assert (status, '"allowed":true' in body) == (200, True)
            return '"revision":8' in body

        (copy,) = wait_until(lambda: list((tmp_path / "state").glob("*.config")), "the copy on its disk")
        before, changed_ns = copy.read_bytes(), copy.parent.stat().st_mtime_ns
        # The kernel refuses every write to a file, as it does on a full disk.
        _, most = resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (0, most))
        publish(limits, POLICY, revision=8)
        wait_until(has_the_edit)
        assert one.ready() == 200
        wait_until(lambda: copy.parent.stat().st_mtime_ns != changed_ns, "a file that is not written whole")
        wait_until(lambda: not list(copy.parent.glob(f".{copy.name}.*")), "it is removed")
        assert copy.read_bytes() == before
        resource.prlimit(one.process.pid, resource.RLIMIT_FSIZE, (most, most))
        publish(limits, POLICY, revision=9)
        wait_until(lambda: copy.read_bytes() != before, "the copy is written again")
        assert list(copy.parent.glob(f".{copy.name}.*")) == []


def test_a_sidecar_decides_on_after_the_signal_until_the_application_has_left(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, POLICY, revision=7)
    with sidecar(redis_url, tmp_path, "--drain-s", "600") as one:
        headers = {"authorization": "Bearer secret"}
        with httpx.Client(base_url=one.url, headers=headers, timeout=PATIENCE_S, trust_env=False) as http:
            before = http.post("/v1/calls", json={"dependency": "payments"}).json()
            one.process.send_signal(signal.SIGTERM)
            wait_until(lambda: one.ready() == 503)
            call = http.post("/v1/calls", json={"dependency": "payments"}).json()
            assert call["allowed"]
            report = [{"permit": made["permit"], "status": 200} for made in (before, call)]
            assert http.post("/v1/reports", json=report).json()["accepted"] == 2
        assert one.process.wait(PATIENCE_S) == 0


def test_a_person_at_a_terminal_ends_the_wait(limits: redis.Redis, redis_url: str, tmp_path: Path) -> None:
    publish(limits, POLICY, revision=7)
    with sidecar(redis_url, tmp_path, "--drain-s", "600") as one:
        assert one.post("/v1/calls", '{"dependency": "payments"}')[0] == 200
        one.process.send_signal(signal.SIGTERM)
        wait_until(lambda: one.ready() == 503)
        one.process.send_signal(signal.SIGINT)
        assert one.process.wait(PATIENCE_S) == 0


def test_a_sidecar_does_not_wait_longer_than_it_may(redis_url: str, tmp_path: Path) -> None:
    with sidecar(redis_url, tmp_path, "--drain-s", "0") as one:
        headers = {"authorization": "Bearer secret"}
        with httpx.Client(base_url=one.url, headers=headers, timeout=PATIENCE_S, trust_env=False) as http:
            assert http.post("/v1/reports", json=[{"permit": "p", "status": 200}]).status_code == 200
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "off"], "--listen off needs --unix, --envoy-unix or --envoy-grpc"),
        (["--uid", "0"], "--uid needs --unix or --envoy-unix"),
        (["--unix", "s.sock", "--envoy-unix", "s.sock"], "need a socket each"),
        (["--drain-s", "-1"], "--drain-s must be"),
        (["--no-token", "--probes", "here"], "--probes must be HOST:PORT"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sidecar", *options]) == 2
    assert says in capsys.readouterr().err


def test_a_sidecar_without_a_token_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FUSEBOARD_SIDECAR_TOKEN_FILE", raising=False)
    assert main(["sidecar"]) == 2
    assert "FUSEBOARD_SIDECAR_TOKEN_FILE" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named(redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["sidecar", "--no-token", "--probes", "off", "--listen", f"127.0.0.1:{port}"]) == 2
    assert f"127.0.0.1:{port} cannot be used" in capsys.readouterr().err


def test_the_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sidecar", "--help"])
    shown = capsys.readouterr().out
    assert "--listen" in shown
    assert "FUSEBOARD_SIDECAR_TOKEN_FILE" in shown


def modules_of(*words: str) -> set[str]:
    """What a command has loaded when it prints its help."""
    script = "import sys, atexit; atexit.register(lambda: print(*sys.modules)); import fuseboard.__main__"
    asked = [sys.executable, "-c", script, *words, "--help"]
    printed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    return set(printed.splitlines()[-1].split())


def test_other_commands_load_no_parser() -> None:
    assert {"httptools", "fuseboard.serving", "fuseboard.sidecar"} & modules_of() == set()


def test_a_sidecar_loads_no_other_command() -> None:
    commands = {name for name in modules_of("sidecar") if name.startswith("fuseboard.cli.")}
    assert commands == {"fuseboard.cli.sidecar", "fuseboard.cli.listener_options"}


@pytest.mark.parametrize(
    ("options", "variable", "most"),
    [([], "", 2_000), ([], "500", 500), (["--most-subjects", "700"], "500", 700)],
)
def test_a_sidecar_keeps_fewer_unless_it_is_told_otherwise(
    options: list[str], variable: str, most: int, monkeypatch: pytest.MonkeyPatch
):
    kept: list[int] = []
    monkeypatch.setattr(app, "run", lambda settings, _: kept.append(settings.most_subjects))
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", "off")
    monkeypatch.setenv("FUSEBOARD_MOST_SUBJECTS", variable)
    assert main(["sidecar", "--no-token", *options]) == 0
    assert kept == [most]
