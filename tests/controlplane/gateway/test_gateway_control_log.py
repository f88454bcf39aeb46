"""Each change of a control decision is logged once with its inputs, and counted."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from controlplane.gateway.metrics import exporter
from controlplane.gateway.servers.control_log import CAP_AGAIN_S, LINES_AT_ONCE, ControlLog
from controlplane.gateway.servers.fleet import Fleet
from fuseboard.contract.load import PodLoad
from fuseboard.contract.words import LoadLevel
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, ready_gateway
from tests.controlplane.gateway.test_gateway_protection import calling, hear, part
from tests.controlplane.gateway.test_gateway_unready import ASKS, UNREADY, lease, pods


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def fleet(clock: TurnedClock) -> Fleet:
    return Fleet("production", clock, beat_ms=5_000, beats_per_s=2_000)


def named(lines: Any, event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


def test_a_level_that_changes_is_logged_once_with_its_inputs(fleet: Fleet, clock: TurnedClock) -> None:
    levels = (LoadLevel.NORMAL, LoadLevel.SHED, LoadLevel.SHED, LoadLevel.SHED_HARD, LoadLevel.NORMAL)
    with capture_logs() as lines:
        for level in levels:
            load = PodLoad(level=level, pressure=820, cause="94 calls wait", cpu=950, waiting=94, lag_ms=3)
            fleet.absorb(beat(load=load))
            clock.turn(5.0)
    found = named(lines, "fleet.pod_level")
    assert [(line["before"], line["level"], line["log_level"]) for line in found] == [
        ("normal", "shed", "warning"),
        ("shed", "shed_hard", "warning"),
        ("shed_hard", "normal", "info"),
    ]
    inputs = {"pressure": 0.82, "cause": "94 calls wait", "cpu": 950, "waiting": 94, "lag_ms": 3}
    assert inputs.items() <= found[0].items()
    assert (found[0]["server"], found[0]["environment"]) == ("pod-1", "production")
    assert fleet.protection.log.levels == {"shed": 1, "shed_hard": 1, "normal": 1}


def test_readiness_is_logged_at_each_change(fleet: Fleet, clock: TurnedClock) -> None:
    pods(fleet, clock, 4)
    with capture_logs() as lines:
        for _ in range(3):
            assert lease(fleet, "pod-0")
            assert not lease(fleet, "pod-1")
            clock.turn(5.0)
        for load in (UNREADY, UNREADY, PodLoad()):
            lease(fleet, "pod-0", load)
            clock.turn(5.0)
    for event in ("unready_granted", "unready_refused", "pod_unready", "pod_ready"):
        assert len(named(lines, f"fleet.{event}")) == 1, event
    (refused,) = named(lines, "fleet.unready_refused")
    assert (refused["server"], refused["pods"], refused["most"], refused["asking"]) == ("pod-1", 4, 1, 2)
    assert (fleet.protection.log.unready, fleet.protection.log.ready) == (1, 1)


def test_a_cap_that_changes_is_logged_with_what_it_was_computed_from(fleet: Fleet, clock: TurnedClock):
    with capture_logs() as lines:
        for second in range(0, 61, 5):
            for pod in range(4):
                hear(fleet, beat(f"pod-{pod}", protection=calling(second * 2)))
            part(fleet, beat("pod-0", protection=calling(second * 2)))
            clock.turn(5.0)
    found = named(lines, "fleet.retry_cap")
    assert 1 <= len(found) <= 3, "the cap stays the same from the second heartbeat on"
    assert found[-1]["cap"] == pytest.approx(200, rel=0.25)
    assert (found[-1]["dependency"], found[-1]["callers"], found[-1]["load_factor_percent"]) == (
        "llm",
        4,
        120,
    )
    assert found[-1]["calls_per_s"] == pytest.approx(8.0, rel=0.3)
    # More calls: the pods' own bound is enough.
    fleet.protection.caps.elsewhere = {"llm": (400.0, 10)}
    with capture_logs() as lines:
        for _ in range(5):
            part(fleet, beat("pod-0", protection=calling(200)))
            clock.turn(5.0)
    (line,) = named(lines, "fleet.retry_cap")
    assert (line["cap"], line["before"], line["log_level"]) == (None, found[-1]["cap"], "info")
    assert fleet.protection.log.caps == len(found) + 1


def test_a_cap_that_follows_the_calls_is_not_logged_all_the_time() -> None:
    log = ControlLog("production")
    with capture_logs() as lines:
        for second in range(100):
            log.note_cap("llm", 100 + second % 20, float(second))
            log.note_cap("search", 100 * (1 + second % 2), float(second))
    assert len([line for line in lines if line["dependency"] == "llm"]) == 1
    assert len([line for line in lines if line["dependency"] == "search"]) <= 100 / CAP_AGAIN_S
    log.keep_caps({"llm": 120})
    with capture_logs() as lines:
        log.note_cap("search", 100, 100.0)
        log.note_cap("llm", 100, 100.0)
    assert [line["dependency"] for line in lines] == ["search"]


def test_lines_are_bounded_and_counts_are_not(fleet: Fleet, clock: TurnedClock) -> None:
    hot = PodLoad(level=LoadLevel.SHED)
    for number in range(500):
        fleet.absorb(beat(f"pod-{number}", load=PodLoad()))
    clock.turn(5.0)
    with capture_logs() as lines:
        for number in range(500):
            fleet.absorb(beat(f"pod-{number}", load=hot))
        clock.turn(5.0)
        fleet.absorb(beat("pod-0", load=PodLoad()))
    found = named(lines, "fleet.pod_level")
    assert len(found) == LINES_AT_ONCE + 1
    assert found[-1]["left_out"] == 500 - LINES_AT_ONCE
    assert fleet.protection.log.levels["shed"] == 500


def test_the_counts_are_metrics(clock: TurnedClock) -> None:
    gateway = ready_gateway(clock)
    fleet = gateway.fleet("production")
    fleet.absorb(beat(load=PodLoad()))
    clock.turn(5.0)
    fleet.absorb(beat(load=ASKS))
    text = exporter(gateway)(None).decode()
    assert 'fuseboard_gateway_pod_level_changes_total{environment="production",level="shed_hard"} 1.0' in text
    assert 'fuseboard_gateway_retry_cap_changes_total{environment="production"} 0.0' in text
