"""A replay as a chart shows it: the demand of the last days beside the limit before and after an edit."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.policies.fields import Fields
from controlplane.policies.limits import OPTIONAL
from controlplane.usage.replay import STEP_S, counts_requests

#: The width of one point, so that seven days have 84.
SPAN_S = 7_200
#: A limit of a longer window is not a rate per minute.
_LONGEST_S = 60


@dataclass(frozen=True, kw_only=True)
class Span:
    """The busiest known minute of a span, all edited tenants together."""

    #: The start of the span, in unix seconds.
    at: int
    asked: int
    allowed_before: int
    allowed_after: int


def spans_of(
    asked: Mapping[int, int], allowed_before: Mapping[int, int], allowed_after: Mapping[int, int]
) -> tuple[Span, ...]:
    """Return the spans with known demand, oldest first. Each mapping is by the start of a minute."""
    busiest: dict[int, int] = {}
    for at, count in asked.items():
        span = at - at % SPAN_S
        if span not in busiest or count > asked[busiest[span]]:
            busiest[span] = at
    return tuple(
        Span(
            at=span,
            asked=asked[at],
            allowed_before=allowed_before.get(at, 0),
            allowed_after=allowed_after.get(at, 0),
        )
        for span, at in sorted(busiest.items())
    )


def per_minute(limits: Iterable[Fields], *, suspended: bool) -> float | None:
    """Return what limits let through in a minute, burst aside; ``None`` if none of them bounds a minute."""
    if suspended:
        return 0.0
    rates = [
        columns["limit"] * STEP_S / columns["window_s"]
        for columns in limits
        if counts_requests(columns) and not columns.get("shadow") and _short({**OPTIONAL, **columns})
    ]
    return min(rates, default=None)


def _short(columns: Fields) -> bool:
    return columns["window_s"] <= _LONGEST_S and not columns["period"]


def summed(many: Iterable[Mapping[int, int]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for each in many:
        found.update(each)
    return found
