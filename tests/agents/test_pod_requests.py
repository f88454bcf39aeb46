"""Requests that a pod counts, and what a heartbeat says about them. With a clock that the test sets."""

import sys
import threading

import pytest

from fuseboard.contract.load import PodLoad
from fuseboard.contract.protection import Observe, PodProtection, Shedding
from fuseboard.contract.words import LoadLevel
from fuseboard.protection.cgroup import Usage
from fuseboard.protection.pod import ServedRequest
from fuseboard.protection.shedding import Shed
from tests.agents.pod_bench import FREE, PREMIUM, Bench


def test_a_visit_is_counted_once_however_often_it_ends() -> None:
    bench = Bench()
    visit = bench.pod.enter("GET /", FREE, "acme")
    assert isinstance(visit, ServedRequest)
    assert bench.pod.load().in_flight == 1
    for _ in range(3):
        visit.answered(500)
        visit.leave()
    load = bench.pod.load()
    assert (load.in_flight, load.errors) == (0, 1)


def test_a_visit_that_is_never_left_is_left_by_the_next_tick(caplog: pytest.LogCaptureFixture) -> None:
    """A middleware that drops a streaming response leaked a request for ever."""
    bench = Bench()
    for answered in (True, False):
        visit = bench.pod.enter("GET /", FREE, "acme")
        assert isinstance(visit, ServedRequest)
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
    assert isinstance(served, ServedRequest)
    served.leave()
    del served
    bench.run(0.5)
    assert bench.pod.requests.in_flight == 0


def test_an_answer_after_the_end_counts_nothing() -> None:
    """Such a request was subtracted twice from the requests without an answer, for ever."""
    bench = Bench()
    for _ in range(3):
        visit = bench.pod.enter("GET /", FREE, "acme")
        assert isinstance(visit, ServedRequest)
        visit.leave()
        visit.answered(500)
    assert (bench.pod.requests.unanswered, bench.pod.requests.errors) == (0, 0)


def test_a_request_without_an_answer_is_no_sample() -> None:
    bench = Bench()
    visit = bench.pod.enter("GET /", FREE, "acme")
    assert isinstance(visit, ServedRequest)
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
                assert isinstance(one, ServedRequest)
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
    assert all(isinstance(visit, ServedRequest) for visit in visits)
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
    assert isinstance(bench.pod.enter("GET /", FREE, "acme"), ServedRequest)


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
        late=bench.pod.load().late,
        priorities=bench.pod.load().priorities,
        shares_idle=True,
    )
    assert [one.priority for one in bench.pod.load().priorities] == [FREE, PREMIUM]
    assert (bench.pod.load().p95_ms or 0) == pytest.approx(100, rel=0.09)
