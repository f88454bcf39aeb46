"""The counts of the rate limit service, for Prometheus."""

from collections.abc import Callable, Iterator

from fuseboard.contract.pod_figures import PodFigure
from fuseboard.envoy.service import RateLimitService
from fuseboard.telemetry.prometheus_text import family


def _figure(name: str, text: str) -> PodFigure:
    return PodFigure(f"fuseboard.envoy.{name}", "", text, total=True)


FIGURES: tuple[tuple[PodFigure, Callable[[RateLimitService], int]], ...] = (
    (_figure("allowed", "Requests of Envoy that were allowed."), lambda service: service.allowed),
    (_figure("refused", "Requests of Envoy that were refused."), lambda service: service.refused),
    (
        _figure("unmatched", "Descriptors that no rule decides: allowed, and not counted."),
        lambda service: service.unmatched,
    ),
    (
        _figure("negative", "Descriptors with negative hits, which give nothing back."),
        lambda service: service.negative,
    ),
    (
        _figure("invalid", "Messages that could not be read, which got no decision."),
        lambda service: service.invalid,
    ),
    (
        _figure("defects", "Requests that a defect allowed: the log has the trace."),
        lambda service: service.defects,
    ),
)


def lines(service: RateLimitService, server: str) -> Iterator[str]:
    """The text of all figures of the pod ``server``."""
    for figure, read in FIGURES:
        yield from family(figure, [((), read(service))], server)
