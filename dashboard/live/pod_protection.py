"""The protection of every pod, as its page displays it: parts that are on, and pods in trouble."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controlplane.status.facts import Facts, Observing
from controlplane.status.observed import observed_head, observed_rate, observed_until
from controlplane.status.servers import spared_how
from dashboard.live.servers import Fleet, ServerRow

#: Pods that the list names. The alert, the API and the pages of the pods have all of them.
MAX_SPARED = 20
_PARTS = {"shedding": "shedding", "readiness": "readiness", "routes": "routes with an SLA"}


@dataclass(frozen=True, kw_only=True)
class ObservedLine:
    """``Shedding is in trial mode``, ``until ...``, ``It would have refused 3.2 requests/s.``"""

    head: str
    until: str
    rate: str


@dataclass(frozen=True, kw_only=True)
class SparedRow:
    name: str
    #: Why it is in the list.
    why: str
    how: str
    unhealthy: bool


@dataclass(frozen=True, kw_only=True)
class PodsProtection:
    #: The parts that are on, in words.
    parts: str
    observed: tuple[ObservedLine, ...]
    #: The shed requests of each priority, the lowest first; empty while none is shed.
    shed: tuple[str, ...]
    spared: tuple[SparedRow, ...]
    #: How many more there are than ``spared`` lists.
    more: int


def pods_protection(facts: Facts, fleet: Fleet) -> PodsProtection:
    observes = facts.observes("shedding")
    rows = [_row(row, observes=observes) for row in fleet.rows if row.server.live and _is_listed(row)]
    # Pods that nothing spares come first.
    rows.sort(key=lambda row: (not row.unhealthy, row.name))
    parts = [word for part, word in _PARTS.items() if part in facts.pod_protection]
    return PodsProtection(
        parts=", ".join(parts) or "off",
        observed=observed_lines(facts, facts.observing_now),
        shed=tuple(_shed_lines(facts)),
        spared=tuple(rows[:MAX_SPARED]),
        more=len(rows[MAX_SPARED:]),
    )


def _shed_lines(facts: Facts) -> Iterator[str]:
    rates: dict[int, list[tuple[float, float]]] = {}
    for server in facts.servers:
        if server.live and server.load is not None:
            for priority, (asked, shed) in server.load.priority_rates.items():
                rates.setdefault(int(priority), []).append((asked, shed))
    found = {one: tuple(map(sum, zip(*each, strict=True))) for one, each in sorted(rates.items())}
    if not any(shed for _, shed in found.values()):
        return
    for one, (asked, shed) in found.items():
        part = 100 * shed / asked if asked else 0.0
        yield f"Priority {one}: {part:.0f} % of the requests are shed ({shed:.1f} of {asked:.1f}/s)."


def observed_lines(facts: Facts, parts: Iterable[Observing]) -> tuple[ObservedLine, ...]:
    return tuple(
        ObservedLine(head=observed_head(one), until=observed_until(one), rate=observed_rate(facts, one))
        for one in parts
    )


def _is_listed(row: ServerRow) -> bool:
    load = row.server.load
    return load is not None and (bool(row.because) or row.pressed or load.unready)


def _row(row: ServerRow, *, observes: bool) -> SparedRow:
    cause = row.server.load.cause if row.server.load else ""
    return SparedRow(
        name=row.name,
        why=row.unhealthy or cause or f"pressure {row.pressure}",
        how=spared_how(row.server, observes=observes),
        unhealthy=bool(row.because),
    )
