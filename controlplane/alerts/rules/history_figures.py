"""Figures of rules in the stored history of the fleet, for how often a rule would have fired."""

from collections.abc import Sequence

from controlplane.alerts.rules.rule import HistoryFigure
from controlplane.alerts.rules.thresholds import MIN_CHECKS_PER_S
from controlplane.series.kinds import LATENCY_FIELDS
from controlplane.series.percentiles import percentile
from fuseboard.contract.sync import LATENCY_EDGES_US


def _refused(values: Sequence[int], known_s: int, _: int) -> float:
    requests, refused = values
    return refused / requests if requests > known_s else 0.0


def _failed(values: Sequence[int], known_s: int, _: int) -> float:
    asked, timeouts, errors = values
    return min(1.0, (timeouts + errors) / asked) if asked >= MIN_CHECKS_PER_S * known_s else 0.0


def _p99(values: Sequence[int], _: int, deadline_us: int) -> float:
    return (percentile(values, LATENCY_EDGES_US, 99) or 0.0) / deadline_us


REFUSED_SHARE = HistoryFigure(fields=("requests", "refused"), value=_refused)
FAILED_CHECKS = HistoryFigure(fields=("redis_asked", "redis_timeouts", "redis_errors"), value=_failed)
#: How many pods were live is not stored, so that a share of them does not count here.
LOCAL_PODS = HistoryFigure(fields=("pods_local",), value=lambda values, *_: float(values[0]))
P99_PART = HistoryFigure(fields=LATENCY_FIELDS, value=_p99)
