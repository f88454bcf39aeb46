"""What Prometheus sees of the gateway. Counting costs an addition; names are given at the scrape."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.fleet.models import ServerState

if TYPE_CHECKING:
    from controlplane.gateway.process import Gateway

#: Upper edges in seconds of the time from a request's first byte to its answer.
_EDGES_S = (0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Counts:
    """Plain numbers, touched by every request."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        self.flushes = 0
        self.flush_failures = 0
        self.rows_flushed = 0
        self.reload_failures = 0
        self.seconds = 0.0
        self._buckets = [0] * (len(_EDGES_S) + 1)

    def observe(self, seconds: float) -> None:
        self.seconds += seconds
        self._buckets[bisect_left(_EDGES_S, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        total, found = 0, []
        for edge, count in zip((*map(str, _EDGES_S), "+Inf"), self._buckets, strict=True):
            total += count
            found.append((edge, float(total)))
        return found


class GatewayCollector(Collector):
    """Reads the gateway at every scrape; holds nothing of its own."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._fleets()
        yield from self._configurations()

    def _requests(self) -> Iterable[Metric]:
        counts = self._gateway.counts
        answers = CounterMetricFamily("fuseboard_gateway_answers", "Answers by status.", labels=["status"])
        for status, count in sorted(counts.answers.items()):
            answers.add_metric([str(status)], count)
        yield answers
        yield HistogramMetricFamily(
            "fuseboard_gateway_sync_seconds",
            "Time from a sync's headers to its answer.",
            buckets=counts.cumulative(),
            sum_value=counts.seconds,
        )
        for name, words, value in (
            ("flushes", "Batches written to Postgres.", counts.flushes),
            ("flush_failures", "Batches that Postgres did not take.", counts.flush_failures),
            ("rows_flushed", "Rows of servers written to Postgres.", counts.rows_flushed),
            ("reload_failures", "Readings of the configuration that failed.", counts.reload_failures),
        ):
            yield CounterMetricFamily(f"fuseboard_gateway_{name}", words, value=value)

    def _fleets(self) -> Iterable[Metric]:
        fleets = self._gateway.fleets.values()
        servers = GaugeMetricFamily("fuseboard_servers", "Servers by state.", labels=["environment", "state"])
        frozen = GaugeMetricFamily(
            "fuseboard_fleet_frozen", "1 while no server is called offline.", labels=["environment"]
        )
        stale = CounterMetricFamily(
            "fuseboard_gateway_stale_beats", "Beats that came too late to count.", labels=["environment"]
        )
        for fleet in fleets:
            for state in ServerState:
                servers.add_metric([fleet.environment, state.value], fleet.count(state))
            frozen.add_metric([fleet.environment], float(fleet.preservation.frozen))
            stale.add_metric([fleet.environment], fleet.stale_beats)
        return [servers, frozen, stale]

    def _configurations(self) -> Iterable[Metric]:
        revision = GaugeMetricFamily(
            "fuseboard_gateway_revision", "The revision being served.", labels=["environment"]
        )
        sent = CounterMetricFamily(
            "fuseboard_gateway_policies_sent",
            "Answers that carried the policy document.",
            labels=["environment"],
        )
        for configuration in self._gateway.configurations.values():
            revision.add_metric([configuration.environment], configuration.head.revision)
            sent.add_metric([configuration.environment], configuration.policies_sent)
        age = GaugeMetricFamily(
            "fuseboard_gateway_configuration_age_seconds",
            "Since Postgres was last read.",
            value=self._gateway.configuration_age_s,
        )
        return [revision, sent, age]


def exporter(gateway: "Gateway") -> Callable[[], bytes]:
    """A function that renders the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GatewayCollector(gateway))
    return lambda: generate_latest(registry)
