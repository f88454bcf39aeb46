"""How the demo and the fault matrix judge a limit by what callers saw."""

import pytest

from tools.demo.windows import surely_in_one_window


@pytest.mark.parametrize(
    ("calls", "most"),
    [
        ([], 0),
        ([(0.0, 1.0)], 1),
        ([(0.0, 1.0), (5.0, 6.0), (8.0, 9.0)], 3),
        # The last one may have been charged in the next window.
        ([(0.0, 1.0), (5.0, 6.0), (9.0, 10.0)], 2),
        # A call that waits for longer than a window was in no certain one.
        ([(0.0, 11.0), (1.0, 2.0)], 1),
    ],
)
def test_only_calls_that_were_charged_inside_for_certain_count(
    calls: list[tuple[float, float]], most: int
) -> None:
    assert surely_in_one_window(reversed(calls), window=10.0) == most
