"""The second listener: probes of the kubelet and metrics. It decides nothing, and anyone may ask."""

from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from fuseboard.agent import Agent
from fuseboard.contract.pod_figures import PodFigure
from fuseboard.integrations import pod_answers
from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.http1 import Connections
from fuseboard.sidecar import answers
from fuseboard.sidecar.peers import OUTCOMES_PATH
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
        _figure("handed.on.lost", "Messages that could not be handed on to another worker.", total=True),
        lambda sidecar, _: 0 if sidecar.peers is None else sidecar.peers.lost,
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


PATHS = ("/healthz", "/readyz", "/metrics")
HEALTHY = Answer(200, b'{"healthy": true}')
STOPPING = Answer(503, b'{"ready": false, "because": "the sidecar is stopping"}')


def path_of(request: Request) -> str:
    """The path without a query: Prometheus can be told to send one."""
    return request.path.partition("?")[0]


def refuse(request: Request) -> Answer | None:
    """The answer to a request that is no probe and no scrape."""
    if path_of(request) not in PATHS:
        return answers.problem(404, "unknown-path", "this listener answers /healthz, /readyz and /metrics")
    return None if request.method in ("GET", "HEAD") else answers.wrong_method("GET", "HEAD")


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
        if (refused := refuse(request)) is not None:
            return refused
        path = path_of(request)
        if path == "/healthz":
            return HEALTHY
        if path == "/metrics":
            return _without_length(pod_answers.metrics_answer(self._agent), more=self._figures())
        if self._sidecar.stopping:
            return STOPPING
        return _without_length(pod_answers.readiness_answer(self._agent))

    def _figures(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        server = self._agent.settings.server
        for figure, read in FIGURES:
            yield from family(figure, [((), read(self._sidecar, self._connections))], server)
        yield from self._more()


class Private:
    """Answers the other workers, and the process that started them all."""

    problem = staticmethod(answers.problem)

    def __init__(self, sidecar: Sidecar, probes: Probes, take_ended: Callable[[bytes], None] | None) -> None:
        """``take_ended`` takes outcomes of Envoy's access log, if it comes here."""
        self._sidecar, self._probes, self._take_ended = sidecar, probes, take_ended

    def handle(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        if self._take_ended is not None and request.path == OUTCOMES_PATH:
            self._take_ended(request.body)
            return Answer(200, b"{}")
        return (self._probes if request.path in PATHS else self._sidecar).handle(request)


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
