"""How often a rule would have fired: stored figures of the fleet, put through the states of an alert."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone

from controlplane.alerts.lifecycle import AlertState, Known, News, advance
from controlplane.alerts.rules.rule import Finding, Subject
from controlplane.alerts.rules.settings import RuleSettings
from controlplane.alerts.rules.thresholds import LEAST_CHECKS_PER_S
from controlplane.series.kinds import FLEET, LATENCY_FIELDS
from controlplane.series.percentiles import percentile
from controlplane.series.reading import read
from fuseboard.contract.sync import LATENCY_EDGES_US

#: Minutes of this time are read.
HISTORY_H = 24


@dataclass(frozen=True, kw_only=True)
class _Figure:
    fields: tuple[str, ...]
    #: From the fields, the seconds that they count, and the deadline of Redis in microseconds.
    of: Callable[[Sequence[int], int, int], float]


def _refused(values: Sequence[int], known_s: int, _: int) -> float:
    requests, refused = values
    return refused / requests if requests > known_s else 0.0


def _failed(values: Sequence[int], known_s: int, _: int) -> float:
    asked, timeouts, errors = values
    return min(1.0, (timeouts + errors) / asked) if asked >= LEAST_CHECKS_PER_S * known_s else 0.0


def _p99(values: Sequence[int], _: int, deadline_us: int) -> float:
    return (percentile(values, LATENCY_EDGES_US, 99) or 0.0) / deadline_us


_CHECKS = _Figure(fields=("redis_asked", "redis_timeouts", "redis_errors"), of=_failed)
#: Rules whose figure the history has.
_FIGURES = {
    "429": _Figure(fields=("requests", "refused"), of=_refused),
    "check-errors": _CHECKS,
    "check-failures": _CHECKS,
    # How many pods were live is not stored, so that a share of them does not count here.
    "local": _Figure(fields=("pods_local",), of=lambda values, *_: float(values[0])),
    "p99": _Figure(fields=LATENCY_FIELDS, of=_p99),
}


def times_fired(environment: str, rule: str, settings: RuleSettings, deadline_us: int) -> int | None:
    """How many alerts would have fired in the last ``HISTORY_H`` hours; ``None`` if no figure is stored.

    Minutes without figures count neither for an alert nor against it.
    """
    figure = _FIGURES.get(rule)
    if figure is None:
        return None
    now = timezone.now()
    answer = read(
        environment, FLEET, fields=figure.fields, start=now - timedelta(hours=HISTORY_H), end=now, now=now
    )
    if not settings.enabled:
        return 0
    known: Known | None = None
    fired = 0
    columns = [answer.fields[name] for name in figure.fields]
    for place, known_s in enumerate(answer.known_s):
        values = [column[place] for column in columns]
        blind = not known_s or None in values
        value = 0.0 if blind else figure.of([value or 0 for value in values], known_s, deadline_us)
        at = float(answer.start + place * answer.step_s)
        known, news = advance(
            known,
            None if blind else _found(settings, value, known),
            settings.timing,
            at,
            blind=blind,
            passed_s=float(answer.step_s) if blind else 0.0,
        )
        fired += news is News.FIRED
        if news is News.RESOLVED:
            known = None
    return fired


def _found(settings: RuleSettings, value: float, known: Known | None) -> Finding | None:
    firing = known.severity if known is not None and known.state is AlertState.FIRING else None
    severity = settings.passed(value, firing)
    if severity is None:
        return None
    subject = Subject(kind="servers")
    return Finding(key="", severity=severity, text="", detail="", runbook="", subject=subject)
