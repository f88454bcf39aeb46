"""Runs the sender: started with the first job, killed when a job takes too long, and started again."""

import os
import select
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic

from msgspec import MsgspecError, json

from controlplane.alerts.delivery.addresses import Network
from controlplane.alerts.delivery.apprise.jobs import MAX_BYTES, MAX_S, MAX_START_S, READY, Job, Result

_ROOT = Path(__file__).resolve().parents[3]
#: All that the sender gets of the environment: no secret, no proxy, and no file of a user.
_KEPT = ("LANG", "LC_ALL", "PATH", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ")
_MAX_ANSWER = 64 * 1024


class _SenderLost(Exception):
    """It was killed, or it ended."""


class SenderPool:
    """A few sender programs. More jobs than programs wait for one."""

    def __init__(self, allowed: Iterable[Network] = (), *, most: int = 1, most_s: float = MAX_S) -> None:
        networks = tuple(map(str, allowed))
        self._all = [_Program(networks, most_s) for _ in range(most)]
        self._idle: SimpleQueue[_Program] = SimpleQueue()
        for program in self._all:
            self._idle.put(program)

    def run(self, job: Job) -> Result:
        """Safe in any thread. A job that ends its program has failed."""
        program = self._idle.get()
        try:
            return program.run(job)
        finally:
            self._idle.put(program)

    def rest(self) -> None:
        """End the programs that have no job: they need memory."""
        ended: list[_Program] = []
        while True:
            try:
                program = self._idle.get_nowait()
            except Empty:
                break
            program.end()
            ended.append(program)
        for program in ended:
            self._idle.put(program)

    def close(self) -> None:
        """End all of them, so that no thread waits for an answer. A job after that fails."""
        for program in self._all:
            program.close()


class _Program:
    def __init__(self, networks: tuple[str, ...], most_s: float) -> None:
        self._networks, self._most_s = networks, most_s
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, job: Job) -> Result:
        line = json.encode(job)
        if len(line) > MAX_BYTES:
            return Result(state="refused", said="The message is too long.")
        try:
            program = self._started()
            return json.decode(self._answer(program, line + b"\n"), type=Result)
        except (_SenderLost, MsgspecError, OSError) as error:
            self.end()
            return Result(state="failed", said=str(error)[:200] or type(error).__name__)

    def _started(self) -> subprocess.Popen[bytes]:
        """The program, ready for a job. Its start is not part of the receiver's time."""
        if self._process is not None and self._process.poll() is not None:
            self.end()
        if self._closed:
            raise _SenderLost("The process that sends is ending.")
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", "controlplane.alerts.delivery.apprise", *self._networks],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=_ROOT,
                env={
                    # A file with passwords that HTTP clients read.
                    "NETRC": os.devnull,
                    **{name: os.environ[name] for name in _KEPT if name in os.environ},
                },
                bufsize=0,
                # Ctrl-C in a terminal ends the worker, which ends it.
                start_new_session=True,
            )
            late = f"The sender did not start within {MAX_START_S:g} s: the machine is too busy."
            if _line(self._process, MAX_START_S, late) != READY:
                raise _SenderLost("The sender said something else than that it is ready.")
        return self._process

    def _answer(self, program: subprocess.Popen[bytes], line: bytes) -> bytes:
        assert program.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        program.stdin.write(line)
        return _line(program, self._most_s, f"The receiver did not answer within {self._most_s:g} s.")

    def close(self) -> None:
        """Safe while another thread runs a job: that one reads the end of the answer."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _line(program: subprocess.Popen[bytes], most_s: float, late: str) -> bytes:
    """The next line that the program writes. ``late`` is the message when it takes longer than ``most_s``."""
    stdout, ends = program.stdout, monotonic() + most_s
    assert stdout is not None  # noqa: S101 - for the type checker: it is a pipe
    ready, found = select.poll(), b""
    ready.register(stdout, select.POLLIN)
    while not found.endswith(b"\n"):
        left = ends - monotonic()
        if left <= 0 or not ready.poll(left * 1_000):
            raise _SenderLost(late)
        piece = stdout.read(_MAX_ANSWER)
        if not piece or len(found) > _MAX_ANSWER:
            raise _SenderLost("The sender ended before it answered.")
        found += piece
    return found
