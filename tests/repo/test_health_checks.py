"""The health checks of worker and beat in docker-compose.yml notice a stopped process, for little CPU."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.embedded.children import free_port
from tests.repo.test_compose import SERVICES
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CELERY = [sys.executable, "-m", *SERVICES["beat"]["command"][:3]]
#: A whole Celery needs 2 s to import what it runs.
MAX_CPU_S = 0.5


def healthy(name: str, here: dict[str, str]) -> bool:
    """Run the health check of a service as Docker does, with paths and ports of this machine."""
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    if kind == "CMD-SHELL":
        words = ["sh", "-c", words[0].replace("$$", "$")]
    for there, place in here.items():
        words = [word.replace(there, place) for word in words]
    words[0] = sys.executable if words[0] == "python" else words[0]
    return subprocess.run(words, capture_output=True, check=False, cwd="/").returncode == 0


@contextmanager
def running(*command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    # A database of the tests' broker that no other test reads.
    broker = os.environ["FUSEBOARD_BROKER_URL"].rpartition("/")[0] + "/9"
    environment = os.environ | {"FUSEBOARD_BROKER_URL": broker} | variables
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_beat_is_healthy_while_it_sends_and_not_after_it_has_stopped(tmp_path: Path) -> None:
    here = {"/run/fuseboard": str(tmp_path)}
    variables = SERVICES["beat"]["environment"]
    file = Path(variables["FUSEBOARD_BEAT_FILE"].replace("/run/fuseboard", str(tmp_path)))
    assert not healthy("beat", here)
    with running(*CELERY, "beat", FUSEBOARD_BEAT_FILE=str(file)) as beat:
        wait_until(lambda: healthy("beat", here), "beat to be healthy", within_s=120)
        beat.send_signal(signal.SIGSTOP)
        wait_until(lambda: "T" in _state(beat.pid), "beat to stand still")
        # A minute passes.
        past = time.time() - 61
        os.utime(file, (past, past))
        assert not healthy("beat", here)
        beat.send_signal(signal.SIGCONT)
        wait_until(lambda: healthy("beat", here), "beat to be healthy again")


def test_beat_runs_on_where_its_file_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "missing/beat"
    with running(*CELERY, "beat", FUSEBOARD_BEAT_FILE=str(file)) as beat:
        (tmp_path / "missing").write_text("a file, not a folder")
        wait_until(lambda: _cpu_s(beat.pid) > 1.0, "beat to run", within_s=120)
        (tmp_path / "missing").unlink()
        (tmp_path / "missing").mkdir()
        wait_until(file.exists, "beat to touch its file", within_s=120)
        assert beat.poll() is None


@pytest.mark.parametrize("name", ["worker", "beat"])
def test_a_health_check_starts_no_celery(name: str, tmp_path: Path) -> None:
    """It started all of Celery and Django for each look, every 30 s."""
    (tmp_path / "beat").touch()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    healthy(name, {"/run/fuseboard": str(tmp_path), "9101": str(free_port())})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MAX_CPU_S


def test_the_worker_is_healthy_while_it_answers() -> None:
    port = str(free_port())
    worker = ["worker", *SERVICES["worker"]["command"][4:]]
    with running(*CELERY, *worker, FUSEBOARD_WORKER_METRICS_PORT=f"127.0.0.1:{port}") as process:
        wait_until(lambda: healthy("worker", {"9101": port}), "the worker to be healthy", within_s=120)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: "T" in _state(process.pid), "the worker to stand still")
        assert not healthy("worker", {"9101": port})


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
