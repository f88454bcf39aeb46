"""Twenty processes whose vendor goes down at once. ``make experiments`` plays the whole 30 s."""

from tests.agents.retry_storm import LOAD_FACTOR
from tools.experiments.storm_processes import CALLS, MORE_PER_S, storm

UP_S, DOWN_S = 6.0, 10.0
#: A pause of the machine may push the retries of two moments into one window: so many more per call.
PAUSES = 0.1


def test_a_fleet_of_processes_makes_at_most_1_2_attempts_per_call() -> None:
    found = storm(5, up_s=UP_S, down_s=DOWN_S)
    assert found.calls > 4 * CALLS
    assert 1.02 < found.whole <= LOAD_FACTOR
    assert found.worst <= LOAD_FACTOR + PAUSES
    # The gateway has heard from the pods: about 500 is half of what the load factor allows, spread over them.
    assert 0 < found.cap < 1_000


def test_without_the_control_plane_they_make_ten_retries_a_second_more_at_most() -> None:
    found = storm(2, up_s=UP_S, down_s=DOWN_S, mode="alone")
    assert found.retries <= (LOAD_FACTOR - 1) * found.calls + MORE_PER_S * DOWN_S
    assert found.whole < 2
