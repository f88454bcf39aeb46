"""Twenty processes whose vendor is down for 30 s: how many attempts the fleet makes, in virtual time."""

import heapq
import logging
from collections.abc import Iterator

import pytest

from tests.agents.retry_storm import CAPS, DOWN_S, LOAD_FACTOR, WARM_S, Storm


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("per_s", [0.2, 0.5, 1, 10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_storm_makes_at_most_1_2_attempts_per_call(per_s: float, seed: int):
    storm = Storm(per_s, cap=CAPS[per_s], seed=seed).run()
    assert storm.worst() <= LOAD_FACTOR + 1e-9
    assert storm.whole() > 1.02  # some calls were retried
    # Whoever retries everything calls a vendor that is down three times as often.
    assert Storm(per_s, cap=CAPS[per_s], seed=seed, naive=True).run().whole() > 2.5


@pytest.mark.parametrize("per_s", [0.2, 0.5, 1, 10])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fleet_that_starts_while_its_vendor_is_down_stays_within_1_2(per_s: float, seed: int):
    """The floor of each pod begins with one retry."""
    storm = Storm(per_s, cap=CAPS[per_s], seed=seed, down_from=0.0).run()
    assert storm.worst() <= LOAD_FACTOR + 1e-9
    assert storm.whole() > 1.02


@pytest.mark.parametrize("per_s", [0.2, 0.5, 1, 10])
def test_without_the_control_plane_a_storm_is_worse_by_ten_a_second_at_most(per_s: float):
    storm = Storm(per_s).run()
    calls = sum(first for at, first in storm.attempts if at >= WARM_S)
    retries = sum(not first for at, first in storm.attempts if at >= WARM_S)
    assert retries <= (LOAD_FACTOR - 1) * calls + 10 * DOWN_S


def test_after_a_quiet_minute_nothing_is_saved_up():
    """Floor buckets hold one retry each, and the calls of the last 10 s count, not those before."""
    storm = Storm(1, cap=CAPS[1], seed=5)
    storm._events = [event for event in storm._events if event[0] > WARM_S]
    heapq.heapify(storm._events)
    storm.run()
    assert storm.worst() <= LOAD_FACTOR + 1e-9
    assert storm.whole() > 1.02  # some calls were retried
