"""The figure that a rule evaluates, kept with each open alert, and the turns of its state: both are bounded.

An alert keeps ``MAX_POINTS`` points for as long as its row is kept: one every 10 s for the first 20 minutes,
then every second one is dropped, so that the points always cover its whole episode.
"""

from collections.abc import Collection, Iterable, Sequence
from math import isfinite

from controlplane.alerts.models import Alert
from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import rule_of
from controlplane.status.status import Status

MAX_POINTS = 120
STEP_S = 10.0
#: The evaluation is not exactly on time.
_EARLY_S = 2.0
#: Turns of a state. One that flaps keeps its beginning and the newest.
MAX_TURNS = 50
#: Alerts of an environment that get points: the critical ones first.
MAX_ALERTS = 50

#: A moment in unix seconds, and the figure; or the state since then.
Point = tuple[float, float]
Turn = tuple[float, str]


def figures_of(status: Status, keys: Collection[str]) -> dict[str, float]:
    """Key of an alert -> the figure that its rule evaluates, also while it is not beyond its threshold."""
    rules = {rule_of(key) for key in keys}
    found: dict[str, float] = {}
    for rule in RULES:
        measure = rule.drawn or rule.value
        if rule.key not in rules or measure is None:
            continue
        for one in rule.scope.each(status):
            key = rule.key_of(one)
            if key in keys and isfinite(value := measure(one)):
                found[key] = value
    return found


def drawn_first(rows: Iterable[Alert]) -> list[Alert]:
    """The alerts that get points."""
    return sorted(rows, key=lambda row: (row.severity != "critical", row.key))[:MAX_ALERTS]


def with_point(points: Sequence[Point], at: float, value: float) -> list[Point] | None:
    """The points with one more, or ``None`` while the last one is new enough."""
    kept = list(points)
    if not kept:
        return [(round(at, 1), value)]
    step = STEP_S
    while (at - kept[0][0]) / step > MAX_POINTS - 1:
        step *= 2
    if at - kept[-1][0] < step - _EARLY_S:
        return None
    kept.append((round(at, 1), value))
    # There is one more than an even number: the first and the newest stay.
    return kept if len(kept) <= MAX_POINTS else kept[::2]


def with_turn(turns: Sequence[Turn], at: float, state: str) -> list[Turn]:
    kept = [*turns, (round(at, 1), state)]
    return kept if len(kept) <= MAX_TURNS else [kept[0], *kept[2:]]
