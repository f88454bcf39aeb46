"""What a pod that makes no calls still believes of a breaker is no news about the fleet."""

from dataclasses import replace

import pytest

from controlplane.status.breakers import NO_DATA, BreakerStatus, breaker_statuses
from controlplane.status.facts import BreakerSeen
from tests.controlplane.alerts.alert_facts import CLOSED, NOW, OPEN, facts, pod

#: It heard that the breaker opened. The open time is over, and it has not called since.
IDLE = replace(OPEN, since=NOW - 400, until=None)
ALONE, IDLE_ALONE = replace(CLOSED, local=True), replace(IDLE, local=True)


def status(*views: BreakerSeen) -> BreakerStatus:
    (found,) = breaker_statuses(facts(*(pod(f"web-{n}", view) for n, view in enumerate(views))))
    return found


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        # Redis is frozen. The pods that call have noticed, and each decides alone.
        ((IDLE, ALONE, ALONE, ALONE), "closed"),
        ((IDLE, ALONE, replace(ALONE, state="open", until=NOW + 9)), "closed"),
        # Without Redis, most pods of the fleet do not call this vendor.
        ((IDLE_ALONE, IDLE_ALONE, IDLE_ALONE, ALONE), "closed"),
        # The breaker has closed since, or probes.
        ((IDLE, replace(CLOSED, generation=6)), "closed"),
        ((IDLE, replace(OPEN, state="half_open", generation=5, until=None)), "half_open"),
        # It opened, and nobody has called since its open time is over.
        ((IDLE, IDLE), "open"),
        ((IDLE, CLOSED), "open"),
        ((IDLE_ALONE, IDLE_ALONE), "open"),
        # Pods of which each decides alone, but one: that one has asked Redis.
        ((OPEN, ALONE, ALONE), "open"),
    ],
)
def test_the_state_of_the_fleet_is_that_of_pods_that_know_it(
    views: tuple[BreakerSeen, ...], expected: str
) -> None:
    assert status(*views).effective == expected


def test_an_idle_pod_contradicts_no_breaker() -> None:
    """It paged people: "assistant refuses calls to payments-api while its breaker is closed"."""
    found = status(IDLE, replace(CLOSED, generation=6))
    assert not found.contradicting
    assert not found.divided
    assert [one.effective for one in found.seen_by] == [NO_DATA, "closed"]


def test_a_pod_that_still_refuses_contradicts_a_closed_breaker() -> None:
    found = status(replace(OPEN, generation=5), replace(CLOSED, generation=6))
    assert found.contradicting == ("web-0",)
