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
from controlplane.embedded.servers import PROJECT


class DidNotStart(RuntimeError):
    """A process of the demo ended, or did not answer; the message ends with its log."""


@dataclass
class Actor:
    """One process, and how to begin it again."""

    name: str
    #: Arguments of Python; ``{port}`` stands for the port it is to listen on.
    arguments: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The path that answers 200 once it works; empty for a process that does not listen.
    health: str = ""
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Troupe:
    """All processes of a demo, by name."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self.actors: dict[str, Actor] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def add(self, actor: Actor) -> Actor:
        self.actors[actor.name] = actor
        if actor.health and not (actor.port and port_is_free(actor.port)):
            actor.port = free_port()
        return actor

    def begin(self, *names: str) -> None:
        """Start processes without waiting for them; each keeps the port it once had."""
        for name in names:
            actor = self.actors[name]
            arguments = [argument.format(port=actor.port) for argument in actor.arguments]
            # What an earlier run said is of no use; what the process said before it was killed is.
            with self._log(actor).open("ab" if actor.process else "wb") as log:
                actor.process = spawn(
                    [sys.executable, *arguments],
                    log=log,
                    environment={"PYTHONUNBUFFERED": "1", **actor.environment},
                    directory=PROJECT,
                )

    def await_answers(self, names: Iterable[str], *, within_s: float = 30.0) -> None:
        """Wait until all of them answer. Raises ``DidNotStart`` with the end of a log."""
        with httpx.Client(timeout=1.0, trust_env=False) as client:
            for name in names:
                self._await_answer(self.actors[name], client, within_s)

    def _await_answer(self, actor: Actor, client: httpx.Client, within_s: float) -> None:
        def answers() -> bool:
            if not actor.health:
                return True
            try:
                return client.get(actor.url + actor.health).status_code == 200
            except httpx.TransportError:
                return False

        for _attempt in range(3):
            if actor.process is None:
                break
            if wait_until(answers, actor.process, within_s=within_s):
                return
            if actor.alive or port_is_free(actor.port):  # then it was not a lost race for the port
                break
            actor.port = free_port()
            self.begin(actor.name)
        log = self._log(actor)
        raise DidNotStart(f"{actor.name} did not start; {log.name} ends with:\n{last_lines(log)}")

    def kill(self, *names: str) -> None:
        """``kill -9``, as a crash would."""
        for name in names:
            process = self.actors[name].process
            if process is not None:
                kill_group(process)
                process.wait()

    def fallen(self) -> list[Actor]:
        """Processes that ended although nobody asked them to."""
        return [actor for actor in self.actors.values() if actor.process is not None and not actor.alive]

    def dismiss(self, *names: str, grace_s: float = 8.0) -> None:
        """Ask processes to stop, all at once; kill those that have not after ``grace_s``."""
        leaving = [actor for name in names if (actor := self.actors.get(name)) is not None]
        going = [actor.process for actor in leaving if actor.process is not None]
        for process in going:
            process.terminate()
        deadline = time.monotonic() + grace_s
        for process in going:
            stop(process, grace_s=max(0.1, deadline - time.monotonic()))
            kill_group(process)
        for actor in leaving:
            actor.process = None

    def _log(self, actor: Actor) -> Path:
        return self.logs / f"{actor.name}.log"
