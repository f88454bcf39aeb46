"""One figure that says how much a pod is overloaded, and why. With a clock that the test sets."""

import asyncio
from itertools import count

import pytest

from fuseboard.contract.protection import PodProtection, Readiness, Route, Shedding
from fuseboard.contract.words import LoadLevel
from fuseboard.protection import readiness, signals
from fuseboard.protection.cgroup import Usage
from fuseboard.protection.pod import Pod
from fuseboard.protection.pressure import SCALES, PressureGauge, signal
from tests.agents.pod_bench import FREE, Bench


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


def test_a_queue_and_latency_refuse_no_tier_as_a_whole() -> None:
    """They limit the rate. If they were also pressure for the shedder, it would refuse twice."""
    bench = Bench()
    bench.calls.waits = 99
    assert bench.run(2).value == pytest.approx(0.98)
    assert bench.pod.shedder is not None
    assert (bench.pod.shedder.cut, bench.pod.pressure.level) == (-1, LoadLevel.NORMAL)
    bench.calls.waits, bench.resources.usage = 0, Usage(cpu=0.9)
    assert bench.run(4).level is LoadLevel.SHED
    assert bench.pod.shedder.cut == 1


def test_the_p95_of_an_overload_that_has_ended_is_no_longer_pressure() -> None:
    bench = Bench(PodProtection(shedding=Shedding(), routes=(Route(pattern="GET /*", sla_ms=1000),)))
    bench.serve(500, 1.0)
    assert bench.run().value > 0.9
    bench.run(2)
    bench.serve(20, 0.01)
    bench.run(1)
    latency = next(one for one in bench.pod.pressure.signals if one.name == "latency")
    assert (latency.score, latency.measured) == (0, pytest.approx(0.01, rel=0.05))
    # The other way round: a peak of a second is no overload yet.
    bench.run(12)
    bench.serve(1000, 0.01)
    bench.run(3)
    bench.serve(40, 1.0)
    bench.run(1)
    latency = next(one for one in bench.pod.pressure.signals if one.name == "latency")
    assert latency.score == 0


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
