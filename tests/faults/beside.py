"""A sidecar as a process, and an application that asks it as the examples of ``docs/sidecar.md`` do."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from controlplane.embedded.children import kill_group, last_lines
from controlplane.installation import FOLDER as PROJECT
from tests.faults.ends import PATIENCE_S
from tests.faults.field import Broken, Field

#: The page tells clients to wait this long. Rows do so where the sidecar does not answer.
CLIENT_S = 0.1
#: The application makes the call without a decision.
UNGUARDED = "unguarded"


@dataclass(frozen=True)
class Call:
    #: ``allowed``, the reason of a refusal, or ``unguarded``.
    how: str
    #: Before the question and after the answer, in microseconds of the wall clock.
    asked_us: int
    answered_us: int
    #: The decision; empty without one.
    decision: dict[str, Any]

    @property
    def permit(self) -> str:
        return str(self.decision["permit"])

    @property
    def waited_s(self) -> float:
        return (self.answered_us - self.asked_us) / 1e6


class Beside:
    """The sidecar, which can be killed and started again at the same address."""

    def __init__(self, field: Field, name: str) -> None:
        self.name, self.log = name, field.folder / f"{name}.log"
        self.to_redis, self.to_gateway = field.proxies()
        self.token, self.token_file = "first", field.folder / f"{name}.token"
        self.token_file.write_text(self.token)
        self.agent_token_file = field.folder / f"{name}.agent-token"
        self.agent_token_file.write_text(field.token)
        variables = field.environment_of(name, self.to_redis, self.to_gateway)
        del variables["FUSEBOARD_TOKEN"]
        self._variables = variables | {
            "FUSEBOARD_TOKEN_FILE": str(self.agent_token_file),
            "FUSEBOARD_SIDECAR_TOKEN_FILE": str(self.token_file),
        }
        self._listen = self._probes = "127.0.0.1:0"
        # A connection of its own for each request: none is left from a sidecar that was killed.
        self._http = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        self._process: subprocess.Popen[str] | None = None

    # The process

    def begin(self) -> None:
        """Returns when it decides."""
        command = [sys.executable, "-m", "fuseboard", "sidecar", "--listen", self._listen]
        with self.log.open("ab") as errors:
            self._process = process = subprocess.Popen(
                [*command, "--probes", self._probes],
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._variables,
                cwd=PROJECT,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None
        self._listen, self._probes = (self._address(process.stdout.readline()) for _ in range(2))

    def _address(self, line: str) -> str:
        found = re.search(r"http://(\S+)", line)
        if found is None:
            raise Broken(f"{self.name} did not start: {last_lines(self.log)}")
        return found[1]

    def kill(self) -> None:
        """``kill -9``."""
        kill_group(self._begun)
        self._gone()

    def freeze(self) -> None:
        self._begun.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._begun.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """As Kubernetes stops it: it reports what is left."""
        if self._process is not None and self._process.poll() is None:
            self.go_on()
            self._process.terminate()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                kill_group(self._process)
            self._gone()
        self._http.close()

    @property
    def _begun(self) -> "subprocess.Popen[str]":
        assert self._process is not None
        return self._process

    def _gone(self) -> None:
        process = self._begun
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    # The application

    def post(self, path: str, content: Any, *, timeout_s: float = PATIENCE_S) -> tuple[int, Any]:
        """Status and content of the answer; 0 and ``None`` without one."""
        headers = {"authorization": f"Bearer {self.token}"}
        try:
            answer = self._http.post(
                f"http://{self._listen}{path}", json=content, headers=headers, timeout=timeout_s
            )
        except httpx.TransportError:
            return 0, None
        return answer.status_code, answer.json()

    def call(self, dependency: str, *, timeout_s: float = PATIENCE_S) -> Call:
        """Ask for a call. Without a decision, the application makes it and reports nothing."""
        asked_us = time.time_ns() // 1000
        status, found = self.post("/v1/calls", {"dependency": dependency}, timeout_s=timeout_s)
        answered_us = time.time_ns() // 1000
        if status != 200:
            return Call(UNGUARDED, asked_us, answered_us, {})
        how = "allowed" if found["allowed"] else found["reason"]
        return Call(how, asked_us, answered_us, found)

    def report(self, *calls: Call) -> dict[str, Any]:
        """Each has ended with status 200."""
        status, found = self.post("/v1/reports", [{"permit": call.permit, "status": 200} for call in calls])
        if status != 200:
            raise Broken(f"a report was answered by {status}: {found}")
        answer: dict[str, Any] = found
        return answer

    def guarded(self, dependency: str) -> Call:
        """A whole call."""
        call = self.call(dependency)
        if call.how == "allowed":
            self.report(call)
        return call

    def figure(self, name: str) -> float:
        """One of the figures of the sidecar at ``/metrics``."""
        page = self._http.get(f"http://{self._probes}/metrics", timeout=PATIENCE_S).text
        found = re.search(rf"^fuseboard_sidecar_{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
        if found is None:
            raise Broken(f"{self.name} has no figure {name}")
        return float(found[1])


@contextmanager
def beside(field: Field, *names: str) -> Iterator[list[Beside]]:
    """Sidecars of one row that share limits with the pods; they have stopped when the row ends."""
    with ExitStack() as stack:
        started = []
        for name in names:
            one = Beside(field, name)
            # One that does not start as it should must end, too.
            stack.callback(one.stop)
            one.begin()
            started.append(one)
        yield started


def shared(field: Field, *sidecars: Beside, within_s: float = 60.0) -> float:
    """Wait until Redis decides their calls by the newest configuration."""
    _, revision = field.director.ask({"do": "head"})

    def decides(one: Beside) -> bool:
        decision = one.guarded("open-road").decision
        return decision["mode"] == "shared" and decision["revision"] >= revision

    return field.until("sidecars that share", lambda: all(map(decides, sidecars)), within_s)


def times_of(field: Field, target: str, since_us: int, calls: Iterable[Call]) -> list[tuple[int, int]]:
    """When pods, and sidecars with these calls, admitted ``target``."""
    of_pods = [
        (at, at) for pod in field.pods for at, what, _ in pod.history() if what == target and at >= since_us
    ]
    return of_pods + [(call.asked_us, call.answered_us) for call in calls if call.how == "allowed"]
