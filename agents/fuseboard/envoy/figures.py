"""The counts of the services for Envoy, for Prometheus."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fuseboard.contract.pod_figures import PodFigure
from fuseboard.envoy.access_log import AccessLog
from fuseboard.envoy.service import RateLimitService
from fuseboard.telemetry.prometheus_text import family

if TYPE_CHECKING:
    from fuseboard.envoy.grpc_server import GrpcServer


def _figure(name: str, text: str, *, total: bool = True) -> PodFigure:
    return PodFigure(f"fuseboard.envoy.{name}", "", text, total=total)


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


#: The figures of the access log, in the same form.
LOG_FIGURES: tuple[tuple[PodFigure, Callable[[AccessLog], int]], ...] = (
    (_figure("outcomes", "Outcomes of calls that the access log brought."), lambda log: log.outcomes),
    (
        _figure("outcomes.unknown", "Permits in the access log that had ended, or that others gave."),
        lambda log: log.unknown,
    ),
    (_figure("exports.invalid", "Exports of the log that could not be read."), lambda log: log.invalid),
    (_figure("exports.cut", "Exports of the log that were too long to be read whole."), lambda log: log.cut),
    (
        _figure("repeated", "Attempts of Envoy after the first, which were charged afterwards."),
        lambda log: log.repeated,
    ),
    (
        _figure("nodes", "Envoys that count as separate witnesses.", total=False),
        lambda log: len(log.nodes),
    ),
    (
        _figure("nodes.beyond", "Exports of further Envoys, which count as this pod's."),
        lambda log: log.nodes.beyond,
    ),
)


#: The figures of a listener over gRPC with certificates.
CERTIFICATE_ENDS = PodFigure(
    "fuseboard.envoy.certificate.expiry.timestamp",
    "s",
    "When the certificate of an option of the sidecar expires, in Unix time.",
    ("option",),
)
RENEWALS_REFUSED = _figure("renewals.refused", "Renewed certificates that are wrong, and so are not used.")
STRANGERS = _figure("strangers", "Requests without a certificate that --client-san names.")
TLS_FIGURES = (CERTIFICATE_ENDS, RENEWALS_REFUSED, STRANGERS)


def lines(service: RateLimitService, log: AccessLog, grpc: "GrpcServer | None", server: str) -> Iterator[str]:
    """The text of all figures of the pod ``server``."""
    for figure, read in FIGURES:
        yield from family(figure, [((), read(service))], server)
    for figure, read_log in LOG_FIGURES:
        yield from family(figure, [((), read_log(log))], server)
    if grpc is not None and grpc.certificates is not None:
        # Without a handshake since the renewal, the figure would end with the earlier files.
        grpc.certificates.renew()
        ends = [((one.option.lstrip("-"),), one.ends) for one in grpc.certificates.validity]
        yield from family(CERTIFICATE_ENDS, ends, server)
        yield from family(RENEWALS_REFUSED, [((), grpc.certificates.refused)], server)
        yield from family(STRANGERS, [((), grpc.strangers)], server)
