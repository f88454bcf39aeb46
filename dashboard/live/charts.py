"""The charts of a page: the lines of each, as fields of stored series.

The browser fetches the figures from the API and draws them, see ``chart.js``. So a chart survives a
restart of web, and costs the live socket nothing.
"""

import json
from dataclasses import asdict, dataclass
from functools import partial
from urllib.parse import urlencode

from controlplane.phrases import percent
from controlplane.series.kinds import BY_NAME, CALL_FIELDS, LATENCY_FIELDS
from controlplane.series.marks import Mark
from dashboard.live.overview import Live
from dashboard.live.tiles import refused_limit
from dashboard.live.topics import Context, Topic
from fuseboard.contract.sync import CALL_EDGES_MS, LATENCY_EDGES_US

#: The ranges that buttons offer, in seconds.
SPANS = (
    (900, "15 min"),
    (3600, "1 h"),
    (6 * 3600, "6 h"),
    (86_400, "24 h"),
    (8 * 86_400, "8 d"),
    (30 * 86_400, "30 d"),
)


@dataclass(frozen=True, kw_only=True)
class Line:
    label: str
    #: Fields whose sum is drawn.
    fields: tuple[str, ...]
    #: ``rate`` per second, ``percent`` of the fields in ``of``, ``peak`` as measured, or ``percentile``.
    how: str = "rate"
    of: tuple[str, ...] = ()
    #: The number that divides a peak.
    divisor: float = 1
    #: The percentile, in percent.
    at: float = 0
    #: Names a colour and a dash: ``plain``, ``bad``, ``cut`` or ``human``.
    look: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Chart:
    id: str
    title: str
    kind: str
    lines: tuple[Line, ...]
    unit: str = "/s"
    name: str = ""
    rule: str = ""
    #: A line across the chart, and its name.
    limit: float | None = None
    limit_label: str = ""
    #: The upper edges of the fields of a percentile, in microseconds.
    edges: tuple[int, ...] = ()
    #: Marks besides those of the API.
    marks: tuple[Mark, ...] = ()
    #: The shortest range that says something, in seconds: the chart displays it if another is not chosen.
    least_s: int = 0

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field for line in self.lines for field in (*line.fields, *line.of)))

    @property
    def query(self) -> str:
        """The parameters of the API, but for the range."""
        for field in self.fields:
            BY_NAME[self.kind].place(field)
        values = {"kind": self.kind, "name": self.name, "rule": self.rule, "fields": ",".join(self.fields)}
        return urlencode({name: value for name, value in values.items() if value})

    @property
    def marks_query(self) -> str:
        return urlencode({"kind": self.kind, "name": self.name} if self.name else {"kind": self.kind})

    @property
    def described(self) -> str:
        """The values that the browser needs besides the figures, as JSON."""
        values = asdict(self)
        described = ("lines", "unit", "limit", "limit_label", "edges", "marks", "least_s")
        return json.dumps({name: values[name] for name in described})


_REFUSED = Line(label="refused", fields=("refused",), look="bad")
ASKED_AND_REFUSED = (Line(label="asked", fields=("asked",)), _REFUSED)
_REQUESTS = (
    Line(label="requests", fields=("requests",)),
    _REFUSED,
    Line(label="decided locally", fields=("decided_locally",), look="cut"),
)


def of_dependency(name: str, *, threshold: float) -> tuple[Chart, ...]:
    chart = partial(Chart, kind="dependency", name=name)
    sent = ("ok", "failures", "slow", "neutral")
    return (
        chart(
            id="chart-failed",
            title="Failed calls",
            unit="%",
            lines=(Line(label="failed", fields=("failures",), how="percent", of=sent, look="bad"),),
            limit=threshold * 100,
            limit_label=f"opens at {threshold * 100:.0f} %",
        ),
        chart(
            id="chart-calls",
            title="Calls",
            lines=(
                Line(label="sent", fields=sent),
                Line(label="blocked", fields=("blocked",), look="cut"),
                Line(label="over a limit", fields=("over_limit",), look="human"),
            ),
        ),
        chart(
            id="chart-latency",
            title="Response time",
            unit="ms",
            lines=(
                Line(label="p99", fields=CALL_FIELDS, how="percentile", at=99),
                Line(label="p95", fields=CALL_FIELDS, how="percentile", at=95, look="human"),
                Line(label="p50", fields=CALL_FIELDS, how="percentile", at=50, look="cut"),
            ),
            edges=tuple(edge * 1000 for edge in CALL_EDGES_MS),
        ),
        chart(id="chart-slow", title="Slow calls", lines=(Line(label="slow", fields=("slow",)),)),
    )


def of_pod(name: str) -> tuple[Chart, ...]:
    chart = partial(Chart, kind="pod", name=name)
    return (
        chart(id="chart-requests", title="Requests", lines=_REQUESTS),
        chart(
            id="chart-calls",
            title="Calls to dependencies",
            lines=(
                Line(label="calls", fields=("calls",)),
                Line(label="failures", fields=("failures",), look="bad"),
            ),
        ),
        chart(
            id="chart-pressure",
            title="Pressure and CPU",
            unit="%",
            lines=(
                Line(label="pressure", fields=("pressure",), how="peak", divisor=10, look="bad"),
                Line(label="CPU", fields=("cpu",), how="peak", divisor=10),
            ),
        ),
    )


def of_tenant(key: str, *, limit: float | None = None, limit_label: str = "") -> tuple[Chart, ...]:
    """``limit`` is what its quota allows, per second."""
    return (
        Chart(
            id="chart-tenant",
            title="Requests",
            kind="tenant",
            name=key,
            lines=ASKED_AND_REFUSED,
            limit=limit,
            limit_label=limit_label,
        ),
        Chart(
            id="chart-tenant-hours",
            title="Requests, hourly",
            kind="tenant_hour",
            name=key,
            lines=(Line(label="asked, mean of the hour", fields=("asked",)), _REFUSED),
            least_s=7 * 86_400,
        ),
    )


def of_fleet(refused_limit: float | None) -> tuple[Chart, ...]:
    chart = partial(Chart, kind="fleet")
    return (
        chart(id="chart-requests", title="Requests", lines=_REQUESTS),
        chart(
            id="chart-refused",
            title="429 responses",
            unit="%",
            lines=(Line(label="refused", fields=("refused",), how="percent", of=("requests",), look="bad"),),
            limit=None if refused_limit is None else refused_limit * 100,
            limit_label="" if refused_limit is None else f"alert above {percent(refused_limit)}",
        ),
        chart(
            id="chart-redis",
            title="Redis response time",
            unit="ms",
            lines=(
                Line(label="p99", fields=LATENCY_FIELDS, how="percentile", at=99),
                Line(label="p50", fields=LATENCY_FIELDS, how="percentile", at=50, look="cut"),
            ),
            edges=LATENCY_EDGES_US,
        ),
    )


def charts_of(topic: Topic, live: Live) -> Context:
    """The charts of a page whose content is the fleet; empty for most pages."""
    match topic.page:
        case "overview":
            return in_context(of_fleet(refused_limit(live.facts)))
        case "breaker":
            breaker = live.breaker(topic.key)
            if breaker is not None:
                return in_context(of_dependency(topic.key, threshold=breaker.threshold))
        case "server":
            return in_context(of_pod(topic.key))
    return {}


def in_context(charts: tuple[Chart, ...]) -> Context:
    """The charts as the template of a page needs them."""
    return {"charts": charts, "chart_spans": SPANS}
