"""The demo's processes: started, watched, killed on purpose, and never left behind."""

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from controlplane.embedded.children import (
    free_port,
    kill_group,
    last_lines,
    port_is_free,
    spawn,
    stop,
    wait_until,
)
from controlplane.installation import FOLDER as PROJECT

#: A process answers within this time after its start, even on a machine ten times as busy as an idle one.
START_S = 90.0


class DidNotStart(RuntimeError):
    """A process of the demo ended, or did not answer; the message ends with its log."""


@dataclass
class Process:
    """One process, and how to start it again."""

    name: str
    #: Arguments of Python; ``{port}`` is replaced by the port it listens on.
    arguments: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The path that answers 200 when it is ready; empty for a process that does not listen.
    health: str = ""
    #: The variable that passes the port, when no argument does.
    port_variable: str = ""
    port: int = 0
    popen: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None


class Processes:
    """All processes of a demo, by name."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.by_name: dict[str, Process] = {}
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, process: Process) -> Process:
        self.by_name[process.name] = process
        if process.health and not (process.port and port_is_free(process.port)):
            process.port = free_port()
        return process

    def begin(self, *names: str) -> None:
        """Start processes without waiting for them; each keeps its earlier port."""
        for name in names:
            process = self.by_name[name]
            arguments = [argument.format(port=process.port) for argument in process.arguments]
            environment = {"PYTHONUNBUFFERED": "1", **process.environment}
            if process.port_variable:
                environment[process.port_variable] = str(process.port)
            # Logs of an earlier run are useless; those from before a kill are not.
            with self._log(process).open("ab" if process.popen else "wb") as log:
                process.popen = spawn(
                    [sys.executable, *arguments],
                    log=log,
                    environment=environment,
                    directory=PROJECT,
                )

    def wait_until_ready(self, names: Iterable[str]) -> None:
        """Wait until all of them answer. Raises ``DidNotStart`` with the end of a log after ``START_S``."""
        with httpx.Client(timeout=5.0, trust_env=False) as client:
            for name in names:
                self._wait_for_answer(self.by_name[name], client)

    def _wait_for_answer(self, process: Process, client: httpx.Client) -> None:
        def answers() -> bool:
            if not process.health:
                return True
            try:
                return client.get(process.url + process.health).status_code == 200
            except httpx.TransportError:
                return False

        for _attempt in range(3):
            if process.popen is None:
                break
            if wait_until(answers, process.popen, within_s=START_S):
                return
            if process.alive or port_is_free(process.port):  # a lost race for the port was not the cause
                break
            process.port = free_port()
            self.begin(process.name)
        log = self._log(process)
        raise DidNotStart(f"{process.name} did not start; {log.name} ends with:\n{last_lines(log)}")

    def kill(self, *names: str) -> None:
        """``kill -9``, as a crash would."""
        for name in names:
            process = self.by_name[name].popen
            if process is not None:
                kill_group(process)
                process.wait()

    def ended(self) -> list[Process]:
        """Processes that ended unexpectedly."""
        return [
            process for process in self.by_name.values() if process.popen is not None and not process.alive
        ]

    def stop(self, *names: str, grace_s: float = 8.0) -> None:
        """Ask processes to stop, all at once; kill those still there after ``grace_s``."""
        leaving = [process for name in names if (process := self.by_name.get(name)) is not None]
        going = [process.popen for process in leaving if process.popen is not None]
        for popen in going:
            popen.terminate()
        deadline = time.monotonic() + grace_s
        for popen in going:
            stop(popen, grace_s=max(0.1, deadline - time.monotonic()))
            kill_group(popen)
        for process in leaving:
            process.popen = None

    def _log(self, process: Process) -> Path:
        return self.logs / f"{process.name}.log"
