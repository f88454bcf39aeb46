"""A call with every local part of the protection, beside a bare semaphore and a stack of libraries.

Shedding, bulkhead, local rate, leased admission and report; the semaphore has two readings of the clock, for
the latency. The stack is ``stamina`` around ``purgatory`` around a semaphore. It has fewer parts: nothing
sheds, no rate, and a breaker that one process has for itself.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import stamina
from purgatory import AsyncCircuitBreakerFactory

from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.lanes import CallLane
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.breaker.reports import Reports
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.composition import compose_retries
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.words import BreakerState, Outcome
from fuseboard.decision import Permit
from tools.bench.side_by_side import ours
from tools.bench.side_by_side.bars import Results, say

#: The dependency is hot in a fleet of this many pods, so that its calls are leased.
PODS = 10
ROUNDS = 150
IN_A_ROW = 400
WARM_UP_S = 8.0
#: A difference of a hundredth needs more and shorter rounds.
OFF_ROUNDS = 600
OFF_IN_A_ROW = 200
OLDER = "off, by an admission that knows none"

CLOSED, OK = BreakerState.CLOSED, Outcome.OK
#: Compared by identity, as the agent does.
ONE = 1

Made = Callable[[], Awaitable[None]]


async def measure(url: str, redis_pid: int, results: Results) -> None:
    async with ours.running(url, "guarded", live_servers=PODS) as pod:
        for name in (ours.GUARDED, ours.UNGUARDED):
            await _warm_up(pod, name)
        costs = await _take_turns(
            {
                "a bare semaphore": _semaphore(),
                "no protection": _ours(pod, ours.UNGUARDED),
                "all parts": _ours(pod, ours.GUARDED),
                "all parts and retries": _retried(pod),
                "stamina, purgatory and a semaphore": _stack(),
            },
            ROUNDS,
            IN_A_ROW,
        )
        if pod.admission.guarded.shed != pod.shedding.refuses:
            raise SystemExit("the shedding does not take part")
        off = await _take_turns(
            {"off": _ours(pod, ours.UNGUARDED), OLDER: _without_protection(pod)}, OFF_ROUNDS, OFF_IN_A_ROW
        )
    for name, found in (costs | off).items():
        say(f"one guarded call, {name}: {statistics.median(found):,.0f} ns")
    results.ratios["guarded_vs_semaphore"] = _ratio(costs["all parts"], costs["a bare semaphore"])
    stack = costs["stamina, purgatory and a semaphore"]
    results.ratios["guarded_vs_stack"] = _ratio(costs["all parts"], stack)
    results.ratios["guarded_retried_vs_stack"] = _ratio(costs["all parts and retries"], stack)
    results.ratios["protection_off"] = _ratio(off["off"], off[OLDER])


async def _take_turns(calls: dict[str, Made], rounds: int, in_a_row: int) -> dict[str, list[float]]:
    """Nanoseconds of one call, by round."""
    costs: dict[str, list[float]] = {name: [] for name in calls}
    turns = list(calls.items())
    for _ in range(rounds):
        turns.reverse()  # the second contender finds a warmer machine
        for name, call in turns:
            await asyncio.sleep(0.001)  # leases are renewed meanwhile
            began = time.perf_counter_ns()
            for _ in range(in_a_row):
                await call()
            costs[name].append((time.perf_counter_ns() - began) / in_a_row)
    return costs


def _ratio(ours_ns: list[float], theirs_ns: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(ours_ns, theirs_ns, strict=True))


async def _warm_up(pod: ours.Pod, dependency: str) -> None:
    """Until its calls are leased."""
    until = time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        permit = await pod.admission.admit_call(dependency)
        pod.admission.report(permit, Outcome.OK)
        if permit.decision.leased:
            return
    raise SystemExit(f"calls to {dependency} were not leased within {WARM_UP_S:g} s")


def _ours(pod: ours.Pod, dependency: str) -> Made:
    admit, report, ok = pod.admission.admit_call, pod.admission.report, Outcome.OK

    async def call() -> None:
        report(await admit(dependency), ok)

    return call


def _retried(pod: ours.Pod) -> Made:
    """The same as an attempt of a call that may be retried."""
    admit, report, ok = pod.admission.admit_call, pod.admission.report, Outcome.OK
    retries = compose_retries(pod.configuration, pod.admission)

    async def call() -> None:
        retried = RetriedCall(retries, ours.GUARDED)
        retried.begin()
        permit = await admit(ours.GUARDED)
        retried.admitted()
        report(permit, ok)
        retried.succeeded()

    return call


def _without_protection(pod: ours.Pod) -> Made:
    """The same as ``_ours`` by an admission that knows no protection."""
    known = pod.admission
    older = OlderAdmission(known.calls, known.reports, known.configuration, known._lanes)
    admit, report, ok = older.admit_call, older.report, Outcome.OK

    async def call() -> None:
        report(await admit(ours.UNGUARDED), ok)

    return call


class OlderAdmission:
    """The usual call and its report as ``Admission`` had them before there was a protection."""

    def __init__(
        self,
        calls: CallAdmission,
        reports: Reports,
        configuration: Configuration,
        lanes: dict[tuple[str, str], CallLane],
    ) -> None:
        self._calls = calls
        self._older_calls = OlderCalls(calls, reports)
        self._configuration = configuration
        self._lanes = lanes

    def admit_call(
        self,
        dependency: str,
        *,
        tenant: str = "",
        cost: int = 1,
        costs: Mapping[str, int] | None = None,
        spend_quota: bool = False,
        wait_s: float | None = None,
    ) -> Coroutine[Any, Any, Permit]:
        if cost is ONE and costs is None and not spend_quota:
            lane = self._lanes.get((dependency, tenant))
            if lane is None or lane.changes != self._configuration.changes:
                raise SystemExit("the lane of a usual call is not prepared")
            if lane is not None and not (lane.breaker.dependency.wait_ms if wait_s is None else wait_s):
                return self._calls.admit(lane)
        raise SystemExit("this is no usual call")

    def report(self, permit: Permit, outcome: Outcome, cooldown_ms: int = 0) -> None:
        self._older_calls.report(permit, outcome, cooldown_ms)


class OlderCalls:
    def __init__(self, calls: CallAdmission, reports: Reports) -> None:
        self.breakers = calls.breakers
        self.reports = reports

    def report(self, permit: Permit, outcome: Outcome, cooldown_ms: int) -> None:
        if permit.reported:
            return
        permit.reported = True
        breaker = self.breakers.get(permit.dependency) or self._unknown(permit)
        tally = permit.tally
        if (
            tally is None
            or outcome is not OK
            or cooldown_ms
            or breaker.local.state is not CLOSED
            or breaker.overridden
        ):
            raise SystemExit("this is no leased success")
        tally.ok += 1
        if not tally.scheduled:
            self.reports.tally(tally)

    def _unknown(self, permit: Permit) -> FleetBreaker:
        raise SystemExit(f"{permit.dependency} has no breaker")


def _semaphore() -> Made:
    semaphore, clock = asyncio.Semaphore(ours.SLOTS), time.monotonic

    async def call() -> None:
        async with semaphore:
            began = clock()
            clock() - began

    return call


def _stack() -> Made:
    """As their guides say: a caller that is made once, a breaker by name, in memory, and one semaphore."""
    semaphore, clock = asyncio.Semaphore(ours.SLOTS), time.monotonic
    breakers = AsyncCircuitBreakerFactory(default_threshold=20, default_ttl=30)
    retrying = stamina.AsyncRetryingCaller(attempts=3, timeout=20.0).on(ConnectionError)

    async def guarded() -> None:
        async with await breakers.get_breaker("payments"), semaphore:
            began = clock()
            clock() - began

    async def call() -> None:
        await retrying(guarded)

    return call
