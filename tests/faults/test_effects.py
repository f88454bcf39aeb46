"""What the judge of effects counts as two owners at once."""

import pytest

from tests.faults.effects import Effect, judge


def effects(fence: int, *seconds: float) -> list[Effect]:
    return [Effect("report", fence, f"pod-{fence}", int(at * 1e9), True) for at in seconds]


@pytest.mark.parametrize(
    ("every", "together_s"),
    [
        (effects(1, 0, 1) + effects(2, 1, 2), 0),
        (effects(1, 0, 3) + effects(2, 1, 5), 2),
        # One owner goes on beside two others, one after the other.
        (effects(1, 0, 9) + effects(2, 1, 2) + effects(3, 4, 8), 5),
        # The old primary gave the higher fence, and its owner has left: the other one is alone.
        (effects(1, 0, 15) + effects(2, 1, 2), 1),
    ],
)
def test_owners_are_together_while_spans_of_their_effects_overlap(
    every: list[Effect], together_s: float
) -> None:
    assert judge(every).together_s == together_s
