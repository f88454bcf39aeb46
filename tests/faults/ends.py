"""The test's end of its processes, one JSON object per line."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from controlplane.embedded.children import kill_group, last_lines
from controlplane.installation import FOLDER as PROJECT
from tests.faults.chaos import Proxy

#: For a busy machine, and for a pod with a blocked loop.
PATIENCE_S = 40.0
#: For the first line: a new process may have a database to fill.
FIRST_S = 180.0


class Talker:
    """A process that answers every line with a line."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                cwd=PROJECT,
                text=True,
                start_new_session=True,
            )
        self._answers: Queue[dict[str, Any]] = Queue()
        self._numbers = itertools.count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._greeting: dict[str, Any] = {}

    @property
    def greeting(self) -> dict[str, Any]:
        """Wait for its first line."""
        if not self._greeting:
            self._greeting = self._next(FIRST_S)
        return self._greeting

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send_command(self, command: Mapping[str, Any]) -> int:
        """Send a command without waiting; return its number."""
        number = next(self._numbers)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({**command, "number": number}) + "\n")
        self.process.stdin.flush()
        return number

    def ask(self, command: Mapping[str, Any]) -> Any:
        assert self.greeting
        return self.answer(self.send_command(command))

    def answer(self, number: int) -> Any:
        """Wait for one answer; earlier ones are dropped."""
        while True:
            words = self._next()
            if words["number"] == number:
                if "error" in words:
                    raise AssertionError(words["error"])
                return words["answer"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({})

    def _next(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        try:
            words = self._answers.get(timeout=timeout_s)
        except Empty:
            raise AssertionError(f"no answer after {timeout_s:g} s; {last_lines(self._log)}") from None
        if not words:
            raise AssertionError(f"it ended with {self.process.wait()}; {last_lines(self._log)}")
        return words

    def hang_up(self) -> None:
        """It ends when its stdin closes."""
        if self.process.stdin is not None:
            with suppress(OSError):  # unread output of a process that has ended
                self.process.stdin.close()

    def stop(self, *, grace_s: float = 5.0) -> None:
        self.hang_up()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            kill_group(self.process)
            self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def kill(self) -> None:
        """``kill -9``."""
        kill_group(self.process)
        self.stop()


class Pod:
    """A pod, and the proxies between it and everything else."""

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        to_redis: Proxy,
        to_gateway: Proxy,
        *,
        own_clock: bool = False,
        wait: bool = True,
    ) -> None:
        self.name = name
        self.to_redis = to_redis
        self.to_gateway = to_gateway
        self.environment = dict(environment)
        self.log = folder / f"{name}.log"
        self._history = folder / f"{name}.history"
        self._flags = ["--own-clock"] if own_clock else []
        self._begin()
        if wait:
            assert self.ready_s >= 0

    def _begin(self) -> None:
        command = [sys.executable, "-m", "tests.faults.pod", str(self._history), *self._flags]
        self.talker = Talker(command, self.environment, self.log)

    @property
    def ready_s(self) -> float:
        """How long ``agent.start()`` took."""
        return float(self.talker.greeting["ready_s"])

    @property
    def alive(self) -> bool:
        return self.talker.alive

    def restart(self) -> None:
        self.talker.stop()
        self._begin()
        assert self.ready_s >= 0

    def send_command(self, command: Mapping[str, Any]) -> int:
        return self.talker.send_command(command)

    def do(self, what: str, **arguments: Any) -> Any:
        return self.talker.ask({"do": what, **arguments})

    def load(self, mix: Sequence[str], rate: float, **more: float) -> None:
        self.do("load", mix=list(mix), rate=rate, **more)

    def figures(self, *, begin_anew: bool = False) -> dict[str, Any]:
        found: dict[str, Any] = self.do("figures", begin_anew=begin_anew)
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.do("state")
        return found

    def ask(self, target: str) -> dict[str, Any]:
        found: dict[str, Any] = self.do("ask", target=target)
        return found

    def history(self) -> list[tuple[int, str, str]]:
        """Every admission: when (microseconds of the wall clock), what, and where it was decided."""
        if not self._history.exists():
            return []
        lines = (line.split(" ") for line in self._history.read_text().splitlines())
        return [(int(at), target, source) for at, target, source in lines]

    def doctor(self) -> str:
        """The output of ``fuseboard doctor`` with the environment of this pod."""
        command = [sys.executable, "-m", "fuseboard", "doctor"]
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout + done.stderr

    def freeze(self) -> None:
        os.killpg(self.talker.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        if self.alive:
            os.killpg(self.talker.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.talker.kill()

    def stop(self, *, grace_s: float = 5.0) -> None:
        self.talker.stop(grace_s=grace_s)
