"""A pod through ten minutes without Redis: its memory must not grow. ``make soak``."""

import sys
import time

import pytest

from tests.faults.field import Field, field
from tests.faults.seen import WORK

OUTAGE_S = 600
#: Allocators keep what they once needed: the first minutes are not counted.
SETTLED_S = 120
#: The noise of a sample.
NOISE_KIB = 1024


@pytest.mark.soak
@pytest.mark.timeout(OUTAGE_S + 300)
def test_memory_stays_flat_through_a_long_outage():
    with field(short=False) as world:
        slopes = _slopes(world)
        for pod, slope in slopes.items():
            sys.stdout.write(f"{pod}: RSS grew by {slope:+.1f} KiB per minute\n")
            sys.stdout.flush()
    assert max(slopes.values()) * OUTAGE_S / 60 < NOISE_KIB, slopes


def _slopes(world: Field) -> dict[str, float]:
    """KiB per minute of each pod, by least squares."""
    world.load(WORK, 100)
    time.sleep(5)
    world.freeze()
    began = time.monotonic()
    samples: dict[str, list[tuple[float, int]]] = {pod.name: [] for pod in world.pods}
    while (minutes := (time.monotonic() - began) / 60) < OUTAGE_S / 60:
        time.sleep(5)
        if minutes * 60 > SETTLED_S:
            for pod in world.pods:
                samples[pod.name].append((minutes, pod.state()["rss_kib"]))
    for pod in world.pods:
        assert pod.figures()["errors"] == {}
    world.heal()
    world.settle()
    return {name: _slope(found) for name, found in samples.items()}


def _slope(points: list[tuple[float, int]]) -> float:
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
