"""Probes that run: their permits are renewed, so that a long call does not lose its permit.

A permit of a half-open breaker expires after ``probe_lease_ms``, so that a pod that stopped does not keep it.
A call may take longer: a stream, or a vendor that hangs. While the call runs, this pod renews its permit in
Redis, and the place of the probe of its own breaker.
"""

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic

import msgspec

from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.contract.words import BreakerState
from fuseboard.decision import Permit

#: A permit is renewed this often in the time of its lease.
RENEWALS = 3
#: A call without a report keeps its permit for this time, or for this number of its timeouts if that is
#: longer. It is the time after which it loses its slot of the bulkhead, too.
MAX_S = 600.0
MAX_TIMEOUTS = 4


class Probe(msgspec.Struct, gc=False):
    """A call that runs as a probe. Its permit refers to it, so that a forgotten permit is not renewed."""

    probes: "Probes"
    #: Number of this probe; 0 after it has ended.
    number: int

    def end(self) -> None:
        number, self.number = self.number, 0
        if number:
            self.probes.end(number)

    def __del__(self) -> None:
        if self.number:
            self.probes.forgotten(self.number)


class _Running(msgspec.Struct, gc=False):
    breaker: FleetBreaker
    generation: int
    #: Empty if the call is only the probe of the pod's own breaker.
    token: str
    local_generation: int
    until: float
    timer: asyncio.TimerHandle | None = None


class Probes:
    """The running probes of a pod. ``report_soon`` sends what a breaker has to report."""

    def __init__(self, report_soon: Callable[[FleetBreaker], None]) -> None:
        self._report_soon = report_soon
        self._running: dict[int, _Running] = {}
        self._last = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, breaker: FleetBreaker, permit: Permit) -> Permit:
        """``permit``, which is renewed from now on if its call is a probe."""
        half_open = permit.state is BreakerState.HALF_OPEN
        if not half_open and breaker.local.state is not BreakerState.HALF_OPEN:
            return permit
        self._loop = asyncio.get_running_loop()
        self._last = number = self._last + 1
        most_s = max(MAX_S, MAX_TIMEOUTS * breaker.dependency.timeout_ms / 1000)
        token = permit.token if half_open else ""
        running = _Running(
            breaker, permit.generation, token, breaker.local.generation, until=monotonic() + most_s
        )
        self._running[number] = running
        permit.probe = Probe(self, number)
        self._again(number, running)
        return permit

    def end(self, number: int) -> None:
        """The call has ended: its report frees the permit."""
        running = self._running.pop(number, None)
        if running is not None and running.timer is not None:
            running.timer.cancel()

    def forgotten(self, number: int) -> None:
        """The permit is garbage. Called by a finalizer, so in any thread and at any moment."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.end, number)

    def stop(self) -> None:
        for number in tuple(self._running):
            self.end(number)

    def _again(self, number: int, running: _Running) -> None:
        assert self._loop is not None  # noqa: S101 - set when the probe began
        lease_s = running.breaker.dependency.breaker.probe_lease_ms / 1000
        running.timer = self._loop.call_later(lease_s / RENEWALS, self._renew, number)

    def _renew(self, number: int) -> None:
        running = self._running.get(number)
        if running is None:
            return
        breaker = running.breaker
        renewed = breaker.local.renew_probe(running.local_generation, breaker.dependency.breaker)
        if running.token and running.generation == breaker.generation:
            breaker.renew_probe(running.generation, running.token)
            self._report_soon(breaker)
            renewed = True
        # A permit of a generation that has ended is worth nothing.
        if not renewed or monotonic() >= running.until:
            self.end(number)
        else:
            self._again(number, running)
