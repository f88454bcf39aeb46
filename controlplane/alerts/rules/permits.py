"""The alert rule about permits that end without a report."""

from typing import Any

from controlplane.alerts.rules.promql import IN_ENVIRONMENT, by_environment
from controlplane.alerts.rules.rule import (
    FLEET,
    Headline,
    PrometheusQuery,
    Rule,
    Timing,
    jumping,
)
from controlplane.alerts.rules.thresholds import UNREPORTED_SHARE
from controlplane.phrases import percent
from controlplane.status.locks import WINDOW_S
from controlplane.status.status import Status


def _pods(status: Status) -> tuple[str, ...]:
    """The sidecars beyond the threshold of the product. If a person has chosen a lower one, the worst."""
    worst = status.permits.worst.pod
    return status.permits.above(UNREPORTED_SHARE) or ((worst,) if worst else ())


PERMIT_RULES: tuple[Rule[Any], ...] = (
    Rule[Status](
        key="permits-unreported",
        describes="a sidecar gets no reports of calls",
        threshold=jumping(warning=UNREPORTED_SHARE),
        value=lambda status: status.permits.worst.share,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=300, resolves_after_s=120),
        scope=FLEET,
        pods=_pods,
        text=lambda status: (
            f"{percent(status.permits.worst.share)} of the permits of {status.permits.worst.pod}"
            " get no report"
        ),
        detail=lambda status: (
            f"{status.permits.worst.unreported:,} of {status.permits.worst.issued:,} in the last"
            f" {WINDOW_S / 60:.0f} minutes. The access log of Envoy does not arrive, or the application does"
            " not report. Breakers do not see how these calls end."
        ),
        headline=lambda status: Headline.of_pods(_pods(status), "gets", "get", "no reports of calls"),
        weight=335,
        handled="A permit without a report counts as neutral when it ends. It frees its slot.",
        prometheus=PrometheusQuery(
            place=295,
            promql=by_environment("fuseboard_fleet_permits_unreported_ratio") + " >",
            summary="{{ $value | humanizePercentage }} of the permits of a sidecar get no report "
            + IN_ENVIRONMENT,
        ),
        runbook="permits-unreported",
    ),
)
