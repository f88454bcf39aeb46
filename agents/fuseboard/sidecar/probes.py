"""The second listener: probes of the kubelet and metrics. It decides nothing, and anyone may ask."""

from collections.abc import Callable, Iterable, Iterator

from fuseboard.agent import Agent
from fuseboard.contract.pod_figures import PodFigure
from fuseboard.integrations import pod_answers
from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.http1 import Connections
from fuseboard.sidecar import answers
from fuseboard.sidecar.routes import Sidecar
from fuseboard.telemetry.prometheus_text import family

_Those = tuple[Connections, ...]


def _figure(name: str, text: str, *, total: bool = False) -> PodFigure:
    return PodFigure(f"fuseboard.sidecar.{name}", "", text, total=total)


#: Each figure of the sidecar itself, and where it is. The figures of the agent come before them.
FIGURES: tuple[tuple[PodFigure, Callable[[Sidecar, _Those], int]], ...] = (
    (
        _figure("connections", "Open connections of applications."),
        lambda _, connections: sum(map(len, connections)),
    ),
    (
        _figure("connections.refused", "Connections beyond the bound, which got 503.", total=True),
        lambda _, connections: sum(those.refused for those in connections),
    ),
    (
        _figure("connections.displaced", "Idle connections that made room for newer ones.", total=True),
        lambda _, connections: sum(those.displaced for those in connections),
    ),
    (_figure("waiting", "Admissions that wait for their decision."), lambda sidecar, _: sidecar.waiting),
    (
        _figure("busy", "Admissions beyond the bound, which got 503.", total=True),
        lambda sidecar, _: sidecar.busy,
    ),
    (
        _figure("tenants.refused", "Questions about tenants beyond --tenants, which got 403.", total=True),
        lambda sidecar, _: sidecar.foreign,
    ),
    (_figure("permits", "Permits that are not reported yet."), lambda sidecar, _: len(sidecar.permits)),
    (
        _figure("permits.issued", "Permits that applications got.", total=True),
        lambda sidecar, _: sidecar.permits.issued,
    ),
    (
        _figure("permits.expired", "Permits that ended without a report.", total=True),
        lambda sidecar, _: sidecar.permits.expired,
    ),
    (
        _figure("permits.displaced", "Permits that ended because newer ones needed their room.", total=True),
        lambda sidecar, _: sidecar.permits.displaced,
    ),
    (
        _figure("reports.unknown", "Reports of permits that had ended.", total=True),
        lambda sidecar, _: sidecar.reports.unknown,
    ),
    (
        _figure("reports.invalid", "Reports that could not be read.", total=True),
        lambda sidecar, _: sidecar.reports.invalid,
    ),
    (
        _figure("settlements.cut", "Costs beyond what a call can have cost, which were cut.", total=True),
        lambda sidecar, _: sidecar.reports.cut,
    ),
    (_figure("holds", "Requests that are not finished yet."), lambda sidecar, _: len(sidecar.holds)),
    (
        _figure("holds.expired", "Requests that ended without being finished.", total=True),
        lambda sidecar, _: sidecar.holds.expired,
    ),
    (
        _figure("holds.displaced", "Requests that ended because newer ones needed their room.", total=True),
        lambda sidecar, _: sidecar.holds.displaced,
    ),
)


class Probes:
    problem = staticmethod(answers.problem)

    def __init__(
        self,
        agent: Agent,
        sidecar: Sidecar,
        connections: tuple[Connections, ...],
        more: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """``more`` are lines of metrics that other services count."""
        self._agent, self._sidecar, self._connections, self._more = agent, sidecar, connections, more

    def handle(self, request: Request) -> Answer:
        if request.path not in ("/healthz", "/readyz", "/metrics"):
            return answers.problem(
                404, "unknown-path", "this listener answers /healthz, /readyz and /metrics"
            )
        if request.method not in ("GET", "HEAD"):
            return answers.problem(405, "method", "use GET")
        if request.path == "/healthz":
            return Answer(200, b'{"healthy": true}')
        if request.path == "/metrics":
            return _without_length(pod_answers.metrics_answer(self._agent), more=self._figures())
        if self._sidecar.stopping:
            return Answer(503, b'{"ready": false, "because": "the sidecar is stopping"}')
        return _without_length(pod_answers.readiness_answer(self._agent))

    def _figures(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        server = self._agent.settings.server
        for figure, read in FIGURES:
            yield from family(figure, [((), read(self._sidecar, self._connections))], server)
        yield from self._more()


def _without_length(answer: pod_answers.Answer, *, more: str = "") -> Answer:
    """The listener states the length itself."""
    status, headers, body = answer
    known = dict(headers)
    return Answer(
        status,
        body + more.encode(),
        known.pop("content-type"),
        tuple((name, value) for name, value in known.items() if name != "content-length"),
    )
