"""Web and gateway of any version, as processes that are started from its source."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.contract.compat.release import python_path

Found = TypeVar("Found")

_SERVING = re.compile(rb"Serving (http://\S+)/\s")
WITHIN_S = 60.0


@contextmanager
def serving(root: Path, environment: Mapping[str, str], logs: Path) -> Iterator[tuple[str, str]]:
    """The addresses of web and gateway, started together from the source in ``root``."""
    variables = {
        **environment,
        "PYTHONPATH": python_path(root, root / "agents"),
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_BEAT_MS": "200",
    }
    logs.mkdir(parents=True, exist_ok=True)
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for command in ("web", "gateway"):
            with (logs / command).open("wb") as log:
                started[command] = subprocess.Popen(
                    [sys.executable, "manage.py", command, "--port", "0"],
                    cwd=root,
                    env=variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        yield (
            eventually(lambda: _address(started["web"], logs / "web")),
            eventually(lambda: _address(started["gateway"], logs / "gateway")),
        )
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            _end(process)


def eventually(look: Callable[[], Found | None], *, within_s: float = WITHIN_S) -> Found:
    """What ``look`` finds as soon as it finds something."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.02)
    return found


def _address(process: subprocess.Popen[bytes], log: Path) -> str | None:
    said = log.read_bytes()
    assert process.poll() is None, f"{log.name} ended:\n{said[-4_000:].decode(errors='replace')}"
    found = _SERVING.search(said)
    return found[1].decode() if found else None


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
