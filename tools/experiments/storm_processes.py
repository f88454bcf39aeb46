"""Twenty processes, each with an agent, whose vendor goes down at once: on sockets, in real time.

The control plane is a gateway on a socket. It computes the caps of retries from the heartbeats with the
product's own function.
"""

import socket
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from controlplane.gateway.servers.retry_caps import cap_milli
from fuseboard.contract.sync import SyncRequest, SyncResponse
from tests.agents.gateways import FakeGateway, gateway_running
from tests.agents.retry_storm import LOAD_FACTOR, worst_window
from tools.experiments.chart import Chart
from tools.experiments.child import Child
from tools.experiments.result import Result
from tools.experiments.storm_pod import NAME

PROCESSES = 20
#: Retries per second of the whole fleet that may come besides without the control plane.
MORE_PER_S = 10.0
#: A pod's first calls per second are counted over so long.
WINDOW_S = 2.0
#: Windows of so many calls and more are judged.
CALLS = 100


@dataclass(frozen=True)
class Found:
    """The attempts of the whole fleet while the vendor was down: the moment, and whether a first call."""

    attempts: list[tuple[float, bool]]
    #: The retries per 1,000 s that each pod was allowed besides its budget, at most; 0 without a gateway.
    cap: int

    @property
    def calls(self) -> int:
        return sum(first for _, first in self.attempts)

    @property
    def retries(self) -> int:
        return len(self.attempts) - self.calls

    @property
    def whole(self) -> float:
        return len(self.attempts) / self.calls

    @property
    def worst(self) -> float:
        return worst_window(self.attempts, CALLS)


class CappingGateway(FakeGateway):
    """Caps retries by the first calls that the pods report."""

    def __init__(self) -> None:
        super().__init__()
        self.next_ms, self.live_servers = 1_000, PROCESSES
        self.most = 0
        #: Pod -> when its rate was computed, what it had counted then, and the rate.
        self._newest: dict[str, tuple[float, int, float]] = {}
        self._lock = threading.Lock()

    def response(self, beat: SyncRequest) -> SyncResponse:
        answer, now = super().response(beat), time.monotonic()
        total = sum(load.first_calls for load in beat.protection if load.dependency == NAME)
        with self._lock:
            at, before, _ = self._newest.get(beat.server, (now, total, 0.0))
            if now - at >= WINDOW_S or beat.server not in self._newest:
                rate = (total - before) / (now - at) if now > at else 0.0
                self._newest[beat.server] = (now, total, rate)
            rates = [rate for _, _, rate in self._newest.values()]
            cap = cap_milli(sum(rates), len(rates), int(LOAD_FACTOR * 100))
            self.most = max(self.most, cap or 0)
        return msgspec.structs.replace(answer, retry_caps={} if cap is None else {NAME: cap})


class Vendor:
    """Answers one byte per connection. While it is down, its port refuses connections."""

    def __init__(self) -> None:
        self._up = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._up.getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._reserved: socket.socket | None = None

    def __enter__(self) -> "Vendor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self._reserved is not None:
            self._reserved.close()

    def _serve(self) -> None:
        # No asyncio server: one that closes while it accepts leaves the socket of that connection open.
        self._up.settimeout(0.05)
        with self._up:
            while not self._ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = self._up.accept()
                    with connection, suppress(ConnectionError):
                        connection.send(b"1")

    def _stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=10)

    def go_down(self) -> float:
        """From this moment on every call is refused."""
        self._stop()
        # Bound but not listening: nothing else gets the port meanwhile.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", self.port))
        return time.monotonic()


def storm(per_s: float, *, up_s: float, down_s: float, mode: str = "capped") -> Found:
    """Play it. ``mode`` is ``capped``, ``alone`` without a control plane, or ``naive`` without budgets."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        vendor = stack.enter_context(Vendor())
        gateway = CappingGateway()
        url = "naive" if mode == "naive" else ""
        if mode == "capped":
            url = stack.enter_context(gateway_running(gateway)).url
        pods = [
            _pod(stack, folder, vendor.port, per_s, up_s + down_s, seed, url) for seed in range(PROCESSES)
        ]
        for pod in pods:
            pod.line()
        for pod in pods:
            pod.say("go")
        time.sleep(up_s)
        down = vendor.go_down()
        attempts: list[tuple[float, bool]] = []
        for pod in pods:
            attempts += [(at, first) for at, first in pod.found(down_s) if at >= down]
    return Found(sorted(attempts), gateway.most)


def _pod(
    stack: ExitStack, folder: str, port: int, per_s: float, seconds: float, seed: int, url: str
) -> Child:
    home = Path(folder) / str(seed)
    home.mkdir()
    arguments = [str(home), str(port), str(per_s), str(seconds), str(seed), *([url] if url else [])]
    return Child(stack, "tools.experiments.storm_pod", *arguments)


def storm_of_processes() -> Result:
    """T25: the whole 30 seconds."""
    per_s, up_s, down_s = 5.0, 15.0, 30.0
    found = {mode: storm(per_s, up_s=up_s, down_s=down_s, mode=mode) for mode in ("capped", "alone", "naive")}
    capped, alone, naive = found["capped"], found["alone"], found["naive"]
    result = Result(
        key="T25",
        title="A retry storm of processes",
        traffic=f"{PROCESSES} processes with an agent each make {per_s:g} calls per s on real sockets."
        f" The vendor refuses connections for {down_s:.0f} s. Up to 3 attempts; breakers never trip.",
        expected="At most 1.2 attempts per call over the fleet, in every window of at least 100 calls."
        " Without the control plane, at most 10 retries per s more.",
        charts=(
            Chart(
                "Attempts per call of the fleet",
                "seconds since the vendor is down",
                "attempts",
                {"with the agent": _line(capped), "every call thrice": _line(naive)},
                {"load factor": LOAD_FACTOR},
            ),
        ),
        table=(
            ("", "calls while down", "attempts", "attempts per call", "in the worst 100 calls"),
            *(
                (name, str(one.calls), str(len(one.attempts)), f"{one.whole:.2f}", f"{one.worst:.2f}")
                for name, one in (
                    ("with the agent", capped),
                    ("without the control plane", alone),
                    ("every call thrice", naive),
                )
            ),
        ),
    )
    result.check(
        f"In the worst window there are {capped.worst:.2f} attempts per call",
        capped.worst <= LOAD_FACTOR + 1e-9,
    )
    more = max(0.0, alone.retries - (LOAD_FACTOR - 1) * alone.calls) / down_s
    result.check(f"Without the control plane there are {more:.1f} more retries per s", more <= MORE_PER_S)
    result.check(f"Without budgets there are {naive.whole:.1f} attempts per call", naive.whole > 2)
    return result


def _line(found: Found) -> list[tuple[float, float]]:
    begin, end = found.attempts[0][0], found.attempts[-1][0]
    points = []
    for second in range(int(end - begin)):
        some = [first for at, first in found.attempts if second <= at - begin < second + 1]
        points.append((float(second), len(some) / sum(some) if sum(some) else 0.0))
    return points
