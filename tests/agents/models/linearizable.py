"""Whether a concurrent history could have happened one operation after the other.

A history is linearizable when its operations have an order in which each could have been told what
it was told (the oracles say so), and in which whatever ended before another began comes first
(Herlihy and Wing, 1990). The scripts say at which store time they ran; that is the order tried,
and only operations of the same microsecond are tried in every order.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fuseboard.contract.policy import BreakerPolicy, Limit
from tests.agents.models.oracles import Breaker, oracle_of


@dataclass(frozen=True)
class Operation:
    kind: str
    asked: Any
    said: Any
    #: Store time in us; and when it was called and answered, nanoseconds of one clock.
    at: int
    began: int
    ended: int


class Sequential:
    """The limits and the breaker as if one server alone used them."""

    def __init__(self, limits: list[Limit], policy: BreakerPolicy) -> None:
        self.limits = [oracle_of(limit) for limit in limits]
        self.breaker = Breaker(policy)

    def explains(self, operation: Operation) -> bool:
        """Do it; ``False`` when it would have been told something else."""
        told = getattr(self, f"ask_{operation.kind}")(operation.at, *operation.asked)
        return bool(told == operation.said)

    def ask_limits(self, now: int, count: int, cost: int) -> list[Any]:
        room = min(max(0, limit.room(now) // cost) for limit in self.limits)
        granted = min(count, room)
        for limit in self.limits:
            if granted:
                limit.spend(now, granted * cost)
        return [granted, [max(0, limit.room(now)) for limit in self.limits]]

    def ask_admit(self, now: int, count: int, batch: str) -> list[Any]:
        verdict, granted = self.breaker.admit(count, now, batch)
        # A refusal says the generation in force, or the one that asking would have begun.
        return [verdict, granted, self.breaker.generation]

    def ask_report(
        self, now: int, generation: int, server: str, ok: int, failure: int, probe: str, outcome: int
    ) -> list[Any]:
        breaker, change = self.breaker, "none"
        if generation != breaker.generation or not generation:
            change = "stale"
        elif breaker.state == "half_open" and probe:
            change = breaker.report_probe(probe, outcome, now)
        elif breaker.state == "closed" and ok + failure:
            change = breaker.report_closed(server, ok, failure, failure, now)
        return [change, breaker.generation]


def first_that_cannot_be(history: Iterable[Operation], model: Sequential) -> Operation | None:
    """The first operation that no order explains; ``None`` when the history is linearizable."""
    begun_before = 0
    for _, same in groupby(sorted(history, key=lambda one: one.at), key=lambda one: one.at):
        together = list(same)
        for one in together:
            if one.ended < begun_before:
                return one  # it had ended before something that comes earlier was even asked
        begun_before = max(begun_before, *(one.began for one in together))
        found = _in_some_order(together, model)
        if found is None:
            return together[0]
        model = found
    return None


def _in_some_order(together: list[Operation], model: Sequential) -> Sequential | None:
    if not together:
        return model
    for position, one in enumerate(together):
        rest = together[:position] + together[position + 1 :]
        if any(other.ended < one.began for other in rest):
            continue
        tried = deepcopy(model) if rest else model
        if tried.explains(one) and (found := _in_some_order(rest, tried)) is not None:
            return found
    return None
