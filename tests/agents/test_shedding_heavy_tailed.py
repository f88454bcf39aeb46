"""Shedding while a few requests take a hundred times as long as most: in virtual time."""

import math
import random
from collections.abc import Callable

import pytest

from fuseboard.contract.protection import Shedding
from fuseboard.protection.shedding import Shedder
from tests.agents.overload import Result, simulate

SLOTS, MEAN_S = 10, 0.020
CAPACITY = SLOTS / MEAN_S
LEVELS = tuple(range(10))
SIGMA, ALPHA = 1.5, 2.2


def lognormal(draw: random.Random, mean_s: float) -> float:
    """Half take a third of the mean, one of a hundred takes eleven times the mean."""
    return draw.lognormvariate(math.log(mean_s) - SIGMA**2 / 2, SIGMA)


def pareto(draw: random.Random, mean_s: float) -> float:
    """Most take half of the mean; the longest have hardly a bound."""
    return mean_s * (ALPHA - 1) / ALPHA * draw.paretovariate(ALPHA)


Takes = Callable[[random.Random, float], float]
TAILS = pytest.mark.parametrize("takes", [lognormal, pareto])
SEEDS = pytest.mark.parametrize("seed", [1, 2, 3, 4])


def play(takes: Takes, seed: int, load: Callable[[float], float], *, shed: bool = True) -> Result:
    return simulate(
        Shedder(Shedding(queue_max=20), LEVELS, seed=seed) if shed else None,
        rate=lambda now: load(now) * CAPACITY,
        who=lambda draw: (draw.randrange(10), f"tenant-{draw.randrange(50)}"),
        seconds=90,
        slots=SLOTS,
        service_s=lambda now: MEAN_S,
        takes=takes,
        seed=seed,
    )


@TAILS
@SEEDS
def test_twice_the_load_is_shed_by_priority_and_what_is_served_is_served_in_time(
    takes: Takes, seed: int
) -> None:
    result = play(takes, seed, lambda now: 2)
    parts = [result.part(level) for level in LEVELS]
    assert parts == pytest.approx(sorted(parts), abs=0.03)
    assert min(parts[8:]) > 0.95
    assert max(parts[:4]) < 0.05
    assert result.throughput(10, 90) > 0.8 * CAPACITY
    assert result.quantile(0.5, 10) < 0.06
    assert result.quantile(0.95, 10) < 0.25


@TAILS
def test_without_shedding_the_same_load_has_no_answer_in_time(takes: Takes) -> None:
    assert play(takes, 1, lambda now: 2, shed=False).quantile(0.95) > 20


@TAILS
@SEEDS
def test_a_long_request_alone_is_no_overload(takes: Takes, seed: int) -> None:
    """Some of 10 slots are often busy for a second; at 60 % of the load hardly anyone is refused for it."""
    assert play(takes, seed, lambda now: 0.6).drop_rate() < 0.01


@TAILS
@SEEDS
def test_shedding_ends_soon_after_the_overload(takes: Takes, seed: int) -> None:
    result = play(takes, seed, lambda now: 2 if 20 <= now < 50 else 0.6)
    during = [moment for moment in result.switches if 20 <= moment < 60]
    assert len(during) == 2
    assert 20 <= during[0] < 22
    assert 50 <= during[1] < 57
    assert result.drop_rate(60, 90) < 0.01
