"""Web and gateway of any version, as processes that are started from its source."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.contract.compat.release import python_path
from tests.waiting import wait_until

_SERVING = re.compile(rb"Serving (http://\S+)/\s")
#: For processes that start, and for what they report.
WITHIN_S, EVERY_S = 60.0, 0.02


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
            _served(started["web"], logs / "web"),
            _served(started["gateway"], logs / "gateway"),
        )
    finally:
        for process in started.values():
            process.terminate()
        for process in started.values():
            _end(process)


def _served(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address of a process, once it serves."""
    look = partial(_address, process, log)
    return wait_until(look, f"the address of {log.name}", within_s=WITHIN_S, every_s=EVERY_S)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    said = log.read_bytes()
    assert process.poll() is None, f"{log.name} ended:\n{said[-4_000:].decode(errors='replace')}"
    found = _SERVING.search(said)
    return found[1].decode() if found else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
