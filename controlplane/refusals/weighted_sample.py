"""A sample of weighted things that arrive one after the other: VarOpt.

It keeps at most ``size`` things. What it drops adds its weight to others, so that the weights of what it
keeps always add up to the weight of everything that was offered, and each thing's expected weight is its own:
estimates from the sample are unbiased. Of things with equal weights, the sample is uniform. See Cohen,
Duffield, Kaplan, Lund, Thorup: Efficient stream sampling for variance-optimal estimation of subset sums.
"""

import random
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class WeightedSample(Generic[Thing]):
    def __init__(self, size: int, chance: Callable[[], float] = random.random) -> None:
        self.kept: list[tuple[float, Thing]] = []
        self._size, self._chance = size, chance

    def offer(self, weight: float, thing: Thing) -> None:
        """``weight`` is above 0."""
        self.kept.append((weight, thing))
        if len(self.kept) <= self._size:
            return
        self.kept.sort(key=lambda each: each[0])
        least, odds = drop_odds([weight for weight, _ in self.kept])
        left, dropped = self._chance(), len(odds) - 1
        for place, part in enumerate(odds):
            left -= part
            if left < 0:
                dropped = place
                break
        del self.kept[dropped]
        self.kept[: len(odds) - 1] = [(least, thing) for _, thing in self.kept[: len(odds) - 1]]


def drop_odds(weights: Sequence[float]) -> tuple[float, list[float]]:
    """By which chance each of the smallest is dropped, and the weight of those that stay.

    ``weights`` are sorted, and one thing has to go. Those that are not in the list are never dropped.
    """
    total, count = weights[0], 1
    threshold = total
    for weight in weights[1:]:
        if count > 1 and weight >= threshold:
            break
        total, count = total + weight, count + 1
        threshold = total / (count - 1)
    return threshold, [1 - weight / threshold for weight in weights[:count]]
