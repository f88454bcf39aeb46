"""Child processes that never outlive their parent, and the ports they listen on."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

#: ``prctl`` option of Linux: the signal a process gets when its parent dies, for whatever reason.
_PR_SET_PDEATHSIG = 1


class ServerFailed(RuntimeError):
    """A server did not start; the message ends with the last lines of its log."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free right now; another program may still take it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether ``port`` of 127.0.0.1 is free; the port of a server that just closed counts as free."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def spawn(
    command: Sequence[str | Path],
    *,
    log: IO[bytes] | int,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    death_signal: signal.Signals = signal.SIGTERM,
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C in a terminal reaches only us.

    Call it from the main thread: Linux ties ``death_signal`` to the thread that started the process.
    """
    return subprocess.Popen(  # noqa: S603 - our own commands
        [str(part) for part in command],
        stdin=stdin,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        cwd=directory,
        start_new_session=True,
        preexec_fn=_dies_with_parent(death_signal),
    )


def stop(
    process: subprocess.Popen[bytes], *, by: signal.Signals = signal.SIGTERM, grace_s: float = 20.0
) -> None:
    """Ask a process to stop; kill its whole group if it is still there after ``grace_s``."""
    if process.poll() is None:
        process.send_signal(by)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        kill_group(process)
        process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a spawned process and everything it started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # every process of the group is gone already


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[bytes], *, within_s: float) -> bool:
    """Poll ``ready`` until it returns true; return False when the process ends or ``within_s`` passes
    first.
    """
    deadline = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < deadline:
        if ready():
            return True
        time.sleep(0.02)
    return False


def last_lines(log: Path, *, count: int = 15) -> str:
    """The end of a log file, for an error message."""
    if not log.exists():
        return "(the log is empty)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def _dies_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    libc = ctypes.CDLL(None)

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent:  # the parent died between fork and prctl, so no signal will come
            os._exit(1)

    return in_child
