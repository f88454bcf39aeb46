"""One figure that says how much a pod is overloaded, and why. With a clock that the test sets."""

import asyncio
import sys
import threading
from itertools import count

import pytest

from fuseboard.contract.load import PodLoad
from fuseboard.contract.protection import Observe, PodProtection, Readiness, Route, Shedding
from fuseboard.contract.words import LoadLevel
from fuseboard.protection import readiness, signals
from fuseboard.protection.cgroup import ResourceReader, Usage
from fuseboard.protection.pod import Pod, Visit
from fuseboard.protection.pressure import SCALES, Pressure, PressureGauge, signal
from fuseboard.protection.shedding import Shed

FREE, PREMIUM = 10, 90


class Calls:
    """What the admission says about calls that leave the pod."""

    def __init__(self) -> None:
        self.waits = 0
        self.full = 0.0
        self.relieved: list[tuple[float | None, float | None]] = []

    def waiting(self) -> int:
        return self.waits

    def slots(self) -> float:
        return self.full

    def relieve(self, cpu: float | None, memory: float | None, now: float) -> None:
        self.relieved.append((cpu, memory))


class Resources(ResourceReader):
    def __init__(self) -> None:
        self.usage = Usage(cpu=0.1, memory=0.2)

    def read(self, now: float) -> Usage:
        return self.usage

    def close(self) -> None:
        self.usage = Usage()


class Bench:
    """A pod whose time passes by ``run``."""

    def __init__(self, settings: PodProtection | None = None, priorities: tuple[int, ...] = (FREE, PREMIUM)):
        self.now = 100.0
        self.server_us = 0
        self.calls, self.resources = Calls(), Resources()
        self.pod = Pod(
            settings or PodProtection(shedding=Shedding()),
            priorities,
            calls=self.calls,
            clock=lambda: self.now,
            server_us=lambda: self.server_us,
            resources=lambda: self.resources,
        )
        self.pod._resources = self.resources

    def run(self, seconds: float = 1.0, *, late_s: float = 0.0) -> Pressure:
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.pod.tick(self.now, late_s)
        return self.pod.pressure

    def serve(
        self, times: int, seconds: float, *, endpoint: str = "GET /orders/1", status: int = 200
    ) -> None:
        for _ in range(times):
            visit = self.pod.enter(endpoint, PREMIUM, "acme")
            assert isinstance(visit, Visit)
            self.now += seconds
            visit.answered(status)
            visit.leave()
            self.now -= seconds


@pytest.mark.parametrize("name", SCALES)
def test_a_score_is_0_at_normal_and_1_at_full(name: str) -> None:
    scale = SCALES[name]
    middle = (scale.normal + scale.full) / 2
    measured = (0.0, scale.normal, middle, scale.full, 10.0)
    assert [signal(name, one, "").score for one in measured] == pytest.approx([0, 0, 0.5, 1, 1])
    assert signal(name, None, "").score == 0


def test_the_pressure_is_that_of_the_worst_signal_and_says_which_one() -> None:
    bench = Bench()
    bench.calls.waits = 91
    bench.resources.usage = Usage(cpu=0.8, memory=0.5, cores=2)
    pressure = bench.run()
    assert pressure.explain() == "0.82 because 91 calls wait (limit 100)"
    assert pressure.level is LoadLevel.SHED
    named = {one.name: one for one in pressure.signals}
    assert named["cpu"].score == pytest.approx(0.4)
    assert named["cpu"].text == "CPU is at 80% of 2 cores"
    assert pressure.as_dict()["signals"]["queue"]["score"] == 0.82  # type: ignore[index]


@pytest.mark.parametrize(
    ("usage", "text"),
    [
        (Usage(cpu=0.95, cores=1.5), "CPU is at 95% of 1.5 cores"),
        (Usage(throttled=0.5), "the CPU limit stops the pod in 50% of the periods"),
        (Usage(memory=0.95), "memory is at 95% of its limit"),
    ],
)
def test_resources_of_the_pod_are_pressure(usage: Usage, text: str) -> None:
    bench = Bench()
    bench.resources.usage = usage
    assert bench.run(2).explain() == f"1.00 because {text}"
    assert bench.calls.relieved[-1] == (usage.cpu, usage.memory)


def test_calls_are_pressure() -> None:
    bench = Bench()
    bench.calls.full = 1.0
    assert bench.run().cause == "100% of the slots are in use and calls wait"


def test_p95_of_the_worst_route_is_pressure() -> None:
    routes = (Route(pattern="GET /orders/*", sla_ms=1000), Route(pattern="* /slow", sla_ms=60_000))
    bench = Bench(PodProtection(shedding=Shedding(), routes=routes))
    bench.serve(19, 1.0)
    assert bench.run().value == 0  # few samples are no evidence
    bench.serve(1, 1.0)
    bench.serve(50, 1.0, endpoint="POST /slow")
    bench.serve(50, 5.0, endpoint="GET /elsewhere")
    pressure = bench.run()
    assert pressure.value > 0.9
    assert pressure.cause.startswith("p95 of GET /orders/* is ")
    assert pressure.cause.endswith(" ms (SLA 1000 ms)")
    assert bench.run(30).value == 0


def test_own_errors_are_pressure_and_refusals_are_not() -> None:
    bench = Bench()
    bench.serve(60, 0.01, status=429)
    bench.serve(40, 0.01, status=503)
    pressure = bench.run()
    assert pressure.explain() == "0.67 because 40% of the requests fail"
    assert bench.pod.load().errors == 40


def test_one_late_tick_is_no_evidence() -> None:
    bench = Bench()
    bench.run(5)
    assert bench.run(0.25, late_s=3.0).value == 0
    assert bench.run(0.25, late_s=3.0).value == 0
    assert bench.run(0.25, late_s=3.0).value == 1.0
    assert bench.pod.pressure.cause == "the event loop is 3000 ms late"


def test_it_rises_at_once_and_falls_by_a_tenth_per_second() -> None:
    gauge = PressureGauge()
    assert gauge.measure((signal("cpu", 0.95, "CPU"),), 0.0) == 1.0
    assert gauge.measure((signal("cpu", 0.0, "CPU"),), 1.0) == pytest.approx(0.9)
    assert gauge.cause == "a moment ago, CPU"
    assert gauge.measure((signal("cpu", 0.0, "CPU"),), 2.0) == pytest.approx(0.8)
    assert gauge.measure((signal("memory", 0.95, "memory"),), 2.1) == 1.0
    assert gauge.cause == "memory"
    assert gauge.measure((), 60.0) == 0
    assert gauge.cause == ""


def test_requests_that_wait_for_a_late_loop_count_as_waiting() -> None:
    bench = Bench()
    for _ in range(20):
        bench.serve(25, 0.001)
        bench.run(0.25, late_s=0.5)
    assert bench.pod.waiting == pytest.approx(50, rel=0.05)


def test_memory_is_bounded_whatever_clients_ask_for() -> None:
    routes = tuple(Route(pattern=f"GET /{number}/*", sla_ms=10) for number in range(200))
    bench = Bench(PodProtection(routes=routes))
    for number in range(5_000):
        bench.serve(1, 0.01, endpoint=f"GET /{number}/{number}")
    assert len(bench.pod.requests.routes.all()) == 201
    assert bench.pod.requests.routes.of("GET /199/x").pattern == "GET /199/*"
    assert bench.pod.requests.routes.of("GET /200/x").pattern == signals.OTHER
    assert bench.pod.requests.routes.other.histogram.count(bench.now) == 4_800


def test_a_route_that_stays_keeps_its_samples() -> None:
    kept = Route(pattern="GET /a", sla_ms=10)
    bench = Bench(PodProtection(routes=(kept,)))
    bench.serve(30, 0.01, endpoint="GET /a")
    bench.pod.configure(PodProtection(routes=(Route(pattern="GET /b", sla_ms=5), kept)), (FREE,))
    assert bench.pod.requests.routes.of("GET /a").histogram.count(bench.now) == 30
    bench.pod.configure(PodProtection(), (FREE,))
    assert bench.pod.requests.routes.of("GET /a").pattern == signals.OTHER


# Requests


def test_a_visit_is_counted_once_however_often_it_ends() -> None:
    bench = Bench()
    visit = bench.pod.enter("GET /", FREE, "acme")
    assert isinstance(visit, Visit)
    assert bench.pod.load().in_flight == 1
    for _ in range(3):
        visit.answered(500)
        visit.leave()
    load = bench.pod.load()
    assert (load.in_flight, load.errors) == (0, 1)


def test_a_visit_that_is_never_left_is_left_by_the_next_tick(caplog: pytest.LogCaptureFixture) -> None:
    """Third reader, low 10: a middleware that drops a streaming response leaked a request for ever."""
    bench = Bench()
    for answered in (True, False):
        visit = bench.pod.enter("GET /", FREE, "acme")
        assert isinstance(visit, Visit)
        if answered:
            visit.answered(200)
        # A finalizer runs at any moment: also while this thread has the lock, which is not reentrant.
        with bench.pod._lock:
            del visit
    assert bench.pod.requests.in_flight == 2
    bench.run(0.5)
    assert bench.pod.requests.in_flight == bench.pod.requests.unanswered == 0
    assert bench.pod.as_dict()["requests"]["never_left"] == 2  # type: ignore[index]
    assert [one.getMessage()[:22] for one in caplog.records if "never" in one.getMessage()] == [
        "pod.request_never_left"
    ]
    served = bench.pod.enter("GET /", FREE, "acme")
    assert isinstance(served, Visit)
    served.leave()
    del served
    bench.run(0.5)
    assert bench.pod.requests.in_flight == 0


def test_an_answer_after_the_end_counts_nothing() -> None:
    """Third reader, M1: it was subtracted twice from the requests without an answer, for ever."""
    bench = Bench()
    for _ in range(3):
        visit = bench.pod.enter("GET /", FREE, "acme")
        assert isinstance(visit, Visit)
        visit.leave()
        visit.answered(500)
    assert (bench.pod.requests.unanswered, bench.pod.requests.errors) == (0, 0)


def test_a_request_without_an_answer_is_no_sample() -> None:
    bench = Bench()
    visit = bench.pod.enter("GET /", FREE, "acme")
    assert isinstance(visit, Visit)
    visit.leave()
    assert bench.pod.load().p95_ms is None


def test_requests_of_many_threads_are_all_counted() -> None:
    bench = Bench()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def visit() -> None:
            for _ in range(2_000):
                one = bench.pod.enter("GET /", FREE, "acme")
                assert isinstance(one, Visit)
                one.answered(200)
                one.leave()

        threads = [threading.Thread(target=visit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert bench.pod.requests.in_flight == 0
    assert bench.pod.requests.entered == 8_000
    assert bench.pod.requests.latency.count(bench.now) == 8_000


def test_observe_mode_decides_and_counts_until_it_ends() -> None:
    observe = Observe(shedding_until_us=1_000_000)
    bench = Bench(PodProtection(shedding=Shedding(), observe=observe))
    bench.resources.usage = Usage(cpu=0.95)
    bench.run(2)
    visits = [bench.pod.enter("GET /", FREE, "acme") for _ in range(5)]
    assert all(isinstance(visit, Visit) for visit in visits)
    assert bench.pod.load().observed == 5
    bench.server_us = 1_000_001
    bench.run(0.25)
    assert isinstance(bench.pod.enter("GET /", FREE, "acme"), Shed)
    assert bench.pod.load().observed == 5


def test_without_shedding_the_pod_is_measured_and_refuses_nothing() -> None:
    bench = Bench(PodProtection())
    bench.resources.usage = Usage(cpu=0.95, memory=0.95, throttled=1.0)
    pressure = bench.run(2)
    assert (pressure.value, pressure.level) == (1.0, LoadLevel.NORMAL)
    assert isinstance(bench.pod.enter("GET /", FREE, "acme"), Visit)


def test_what_a_heartbeat_says() -> None:
    bench = Bench()
    bench.resources.usage = Usage(cpu=0.91, memory=0.5, throttled=0.1, cores=2)
    bench.serve(30, 0.1)
    bench.run()
    assert bench.pod.load() == PodLoad(
        pressure=840,
        level=LoadLevel.SHED,
        cause="CPU is at 91% of 2 cores",
        cpu=910,
        throttled=100,
        memory=500,
        p95_ms=bench.pod.load().p95_ms,
    )
    assert (bench.pod.load().p95_ms or 0) == pytest.approx(100, rel=0.09)


# Readiness


class Probe:
    def __init__(self) -> None:
        self.readiness = readiness.Readiness(Readiness(hold_ms=10_000))
        self.now = 0.0

    def run(self, seconds: float, pressure: float) -> bool:
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.readiness.tick(pressure, self.now)
        return self.readiness.state(self.now).ready


def test_without_a_grant_a_pod_under_pressure_stays_ready() -> None:
    probe = Probe()
    assert probe.run(600, 1.0)
    assert probe.readiness.asks
    assert "no gateway agrees" in probe.readiness.state(probe.now).why


def test_it_asks_after_the_hold_time_and_not_before() -> None:
    probe = Probe()
    probe.run(10, 1.0)
    assert not probe.readiness.asks
    probe.run(0.25, 0.89)  # a moment below begins again
    probe.run(10, 1.0)
    assert not probe.readiness.asks
    probe.run(0.5, 0.9)
    assert probe.readiness.asks


def test_with_a_grant_it_is_unready_until_the_pressure_is_low_for_long_enough() -> None:
    probe = Probe()
    probe.run(11, 1.0)
    probe.readiness.grant(30_000, asked_at=probe.now, now=probe.now)
    assert not probe.run(5, 1.0)
    assert not probe.run(9, 0.59)
    assert not probe.run(5, 0.7)  # neither high nor low
    probe.readiness.grant(30_000, asked_at=probe.now, now=probe.now)
    assert not probe.run(9.5, 0.59)
    assert probe.run(1, 0.59)
    assert not probe.readiness.asks


def test_a_grant_ends_on_its_own_counted_from_the_question() -> None:
    probe = Probe()
    probe.run(11, 1.0)
    probe.readiness.grant(30_000, asked_at=probe.now - 5, now=probe.now)
    assert not probe.run(24.75, 1.0)
    assert probe.run(0.25, 1.0)
    assert probe.readiness.asks


def test_a_gateway_that_grants_nothing_any_more_ends_it_at_once() -> None:
    probe = Probe()
    probe.run(11, 1.0)
    probe.readiness.grant(30_000, asked_at=probe.now, now=probe.now)
    assert not probe.readiness.state(probe.now).ready
    probe.readiness.grant(0, asked_at=probe.now, now=probe.now)
    assert probe.readiness.state(probe.now).ready
    assert probe.readiness.changes == 2


def test_a_grant_that_was_not_asked_for_changes_nothing() -> None:
    probe = Probe()
    probe.readiness.grant(600_000, asked_at=probe.now, now=probe.now)
    assert probe.run(5, 1.0)


def test_switched_off_it_is_ready() -> None:
    probe = Probe()
    probe.run(11, 1.0)
    probe.readiness.grant(30_000, asked_at=probe.now, now=probe.now)
    probe.readiness.configure(None)
    assert probe.run(30, 1.0)
    assert not probe.readiness.asks


# The timer


async def test_the_timer_ticks_until_it_is_stopped() -> None:
    pod, ticks = Pod(PodProtection(), (FREE,)), count()
    ticked = asyncio.Event()

    def tick(now: float, late_s: float) -> None:
        if next(ticks) >= 2:
            ticked.set()

    pod.tick = tick  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    pod.start(loop)
    pod.start(loop)
    async with asyncio.timeout(30):
        await ticked.wait()
    pod.stop()
    pod.stop()
    assert pod._timer is None
    assert pod._resources is None
