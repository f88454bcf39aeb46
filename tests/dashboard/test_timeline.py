"""S2.9: no label of the picture of a breaker's states is printed over another one or leaves the picture."""

import re
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from controlplane.status.facts import Change, Override
from dashboard.live.timeline import _LETTER, _WIDTH, lanes, segments

END = datetime(2026, 11, 22, 15, 40, 10, tzinfo=UTC).timestamp()
START = END - 3600


def override(made_at: float, expires_at: float, reason: str = "Vendor maintenance, INC-4411") -> Override:
    return Override(
        mode="forced_open",
        reason=reason,
        actor="olga",
        made_at=made_at,
        expires_at=expires_at,
        revision=1,
    )


def change(at: float, revision: int) -> Change:
    return Change(
        at=at, actor="ada", human=True, action="tuning.set", target="t", reason="why", revision=revision
    )


def labels(picture: str, y: int) -> list[tuple[float, float, str]]:
    """Left end, right end and text of each label of a lane, from left to right."""
    found = []
    for x, anchor, text in re.findall(
        rf'<text x="([\d.]+)" y="{y}"(?: text-anchor="(\w+)")?>([^<]*)', picture
    ):
        width = len(text) * _LETTER
        left = float(x) - {"": 0, "middle": width / 2, "end": width}[anchor]
        found.append((left, left + width, text))
    return sorted(found)


def apart(found: list[tuple[float, float, str]]) -> bool:
    return all(one[1] <= other[0] for one, other in pairwise(found))


def test_labels_of_overrides_are_not_printed_over_each_other_or_over_a_bar() -> None:
    early = override(END - 100, END - 90)
    late = override(END - 90, END + 3000, "Vendor maintenance goes on")
    picture = lanes(segments([], "closed", None, START, END), [early, late], [], START, END)
    found = labels(picture, 61)
    assert found, "the newest override is labelled"
    assert apart(found)
    bars = [float(left) for left in re.findall(r'seg-forced" x="([\d.]+)" y="46"', picture)]
    assert all(right <= min(bars) for _, right, _ in found)


def test_an_override_between_two_others_keeps_its_label_where_there_is_room() -> None:
    three = [
        override(at, at + 30, f"reason {at - START:.0f}") for at in (START + 60, START + 1800, END - 120)
    ]
    found = labels(lanes(segments([], "closed", None, START, END), three, [], START, END), 61)
    assert len(found) == 3
    assert apart(found)


@pytest.mark.parametrize("distance", [1, 20, 200, 900])
def test_labels_of_changes_are_not_printed_over_each_other(distance: int) -> None:
    changes = [change(END - 30 - i * distance, 30 - i) for i in range(8) if i * distance < 3500]
    picture = lanes(segments([], "closed", None, START, END), [], changes, START, END)
    found = labels(picture, 91)
    assert found
    assert apart(found)
    assert picture.count('class="mark"') == len(changes)
    assert "<title>revision 30: why</title>" in picture
    assert all(right <= _WIDTH for _, right, _ in found)


def test_the_times_of_the_axis_stay_within_the_picture() -> None:
    for end in (END, END + 30, END + 200):
        picture = lanes(segments([], "closed", None, end - 3600, end), [], [], end - 3600, end)
        assert all(left >= 0 and right <= _WIDTH for left, right, _ in labels(picture, 119))
