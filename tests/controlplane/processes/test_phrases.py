"""Numbers that people read: no power of ten, and "100 %" only of the whole."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.phrases import number, percent, rounded, size
from dashboard.live.protection import duration
from tests.controlplane.alerts.alert_facts import redis_answers
from tests.controlplane.alerts.test_alert_rules import found

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (1.0, "100 %"),
        (2.5, "250 %"),
        (0.9999, "more than 99.9 %"),
        (0.9994, "99.9 %"),
        (0.164, "16.4 %"),
        (0.05, "5 %"),
        (0.0123, "1.2 %"),
        (0.0033, "0.33 %"),
        (0.00001, "less than 0.01 %"),
        (0.0, "0 %"),
    ],
)
def test_a_share_is_in_percent(share: float, words: str) -> None:
    assert percent(share) == words


@given(st.floats(min_value=0, max_value=1e15))
def test_no_number_is_written_as_a_power_of_ten(value: float) -> None:
    words = [percent(value), number(value), rounded(value, 2), duration(value), size(int(value))]
    assert not [text for text in words if re.search(r"\de[+-]?\d", text)], words


@pytest.mark.parametrize(
    ("bytes_", "words"), [(1_023, "1,023 B"), (1_536, "1.5 KiB"), (5_000 * 2**20, "4.88 GiB")]
)
def test_a_size_has_its_unit(bytes_: int, words: str) -> None:
    assert size(bytes_) == words


@pytest.mark.parametrize(("ms", "words"), [(53.0, "53 ms"), (1_500.0, "1.5 s"), (100_000.0, "100 s")])
def test_a_duration_has_its_unit(ms: float, words: str) -> None:
    assert duration(ms) == words


@pytest.mark.parametrize(("timeouts", "words"), [(100.0, "100 %"), (99.99, "more than 99.9 %"), (3.0, "3 %")])
def test_an_alert_of_a_frozen_redis_says_100_percent(timeouts: float, words: str) -> None:
    some = redis_answers(asked_per_s=100.0, timeouts_per_s=timeouts)
    finding = found(some)["check-failures", "critical"]
    assert finding.text == f"{words} of requests to Redis fail"
    assert finding.headline is not None
    assert finding.headline.subject == f"{words} of requests to Redis"


def test_no_text_of_the_control_plane_rounds_with_the_format_that_writes_powers_of_ten() -> None:
    """``.2g`` wrote "1e+02 % of checks fail". ``g`` with ten digits has none below 10,000,000,000."""
    rounds = re.compile(r":,?\.[1-9]g\}")
    files = [
        file
        for folder in ("controlplane", "dashboard", "agents", "tools/demo")
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert files
    found = [str(file.relative_to(ROOT)) for file in files if rounds.search(file.read_text(encoding="utf-8"))]
    assert found == []
