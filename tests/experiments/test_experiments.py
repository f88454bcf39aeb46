"""The simulated experiments hold, and the page and its charts are written from what they found."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import redis

from tools.experiments import page
from tools.experiments.catalogue import EVERY, SIMULATED
from tools.experiments.chart import Chart
from tools.experiments.following import FOLLOWS, HALVED_S, OTHERS, allowed
from tools.experiments.following_at_once import AT_ONCE, at_once, play_at_once
from tools.experiments.result import Result

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", SIMULATED)
def test_what_an_experiment_expects_holds(name: str) -> None:
    result = SIMULATED[name]()
    assert result.key == name
    assert not [statement for statement, holds in result.checks if not holds]
    assert result.holds


def test_a_limit_of_calls_at_once_follows_its_vendor(limits: redis.Redis) -> None:
    """The first 20 minutes of T30, which is too long: a vendor that says nothing halves what it allows."""
    seconds = 1_200
    found = play_at_once(limits, FOLLOWS, seconds=seconds)
    left = sum((1 - OTHERS) * allowed(second) / 60 for second in range(seconds))
    assert found.refused <= 0.04 * found.requests
    assert found.ok >= 0.65 * left
    numbers = [number for _, number in found.followed]
    assert (max(numbers), min(numbers) >= 2) == (AT_ONCE, True)
    # Fewer than it allows from then on.
    assert numbers[-1] <= at_once(HALVED_S)


def test_the_page_has_every_experiment_and_its_charts() -> None:
    text = (DOCS / "experiments.md").read_text()
    found = [line.split()[1].rstrip(":") for line in text.splitlines() if line.startswith("## ")]
    assert found == list(EVERY)
    assert "**Does not hold**" not in text
    drawn = {f"experiments/{chart.name}" for chart in (DOCS / "experiments").glob("*.svg")}
    assert drawn == {part.partition(")")[0] for part in text.split("](")[1:]}


def test_a_page_says_what_does_not_hold_and_draws_well_formed_charts(tmp_path: Path) -> None:
    chart = Chart("A < B", "s", "%", {"one & two": [(0, 0), (10, 250)]}, {"limit": 20}, most=100)
    result = Result("T0", "Title", "traffic", "expected", (chart,), (("a",), ("1",)))
    result.check("it is small", False)
    page.write([result], tmp_path)
    text = (tmp_path / "experiments.md").read_text()
    assert "| a |\n| --- |\n| 1 |\n" in text
    assert "**Does not hold**: it is small." in text
    drawing = ElementTree.parse(tmp_path / "experiments" / "t0-1.svg").getroot()  # noqa: S314 - ours
    texts = [part.text for part in drawing.iter() if part.text]
    assert {"A < B", "one & two", "limit", "100"} <= set(texts)
