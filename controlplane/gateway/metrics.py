"""What Prometheus reads from the gateway."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.fleet.models import ServerState

if TYPE_CHECKING:
    from controlplane.gateway.process import Gateway


class GatewayCollector(Collector):
    """Reads the gateway at every scrape, and stores nothing."""

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
            (
                "metrics_by_agent_token",
                "Answers to /metrics for an agent token.",
                counts.metrics_by_agent_token,
            ),
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
        unknown = GaugeMetricFamily(
            "fuseboard_fleet_unknown_revisions",
            "Pods that report a revision that Postgres never made.",
            labels=["environment"],
        )
        dropped = CounterMetricFamily(
            "fuseboard_gateway_pods_dropped",
            "Pods that made room for a new pod, because the fleet was full.",
            labels=["environment"],
        )
        refused = CounterMetricFamily(
            "fuseboard_gateway_new_pods_refused",
            "Heartbeats of pods with a new name that a token's limit refused.",
            labels=["environment"],
        )
        kept = GaugeMetricFamily(
            "fuseboard_gateway_kept_bytes",
            "What is kept of heartbeats, by its estimated memory.",
            labels=["environment"],
        )
        cut = CounterMetricFamily(
            "fuseboard_gateway_beats_cut",
            "Heartbeats of which the pod, or the gateway, left something out.",
            labels=["environment"],
        )
        for fleet in fleets:
            for state in ServerState:
                servers.add_metric([fleet.environment, state.value], fleet.count(state))
            frozen.add_metric([fleet.environment], float(fleet.preservation.frozen))
            stale.add_metric([fleet.environment], fleet.stale_beats)
            unknown.add_metric([fleet.environment], len(fleet.unknown_revisions))
            refused.add_metric([fleet.environment], fleet.refused_names.total)
            kept.add_metric([fleet.environment], fleet.kept.bytes)
            cut.add_metric([fleet.environment], fleet.kept.cut_beats)
            dropped.add_metric([fleet.environment], fleet.dropped)
        return [servers, frozen, stale, unknown, dropped, refused, kept, cut]

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


def exporter(gateway: "Gateway") -> Callable[[str | None], bytes]:
    """A function that renders the text format, of one environment or of all."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GatewayCollector(gateway))

    def text(environment: str | None) -> bytes:
        if environment is None:
            return generate_latest(registry)
        return generate_latest(_OfOne(registry, environment))

    return text


class _OfOne(Collector):
    """The series of one environment, and those that describe the process."""

    def __init__(self, registry: Collector, environment: str) -> None:
        self._registry, self._environment = registry, environment

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            samples = [
                sample
                for sample in metric.samples
                if sample.labels.get("environment", self._environment) == self._environment
            ]
            if samples:
                seen = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                seen.samples = samples
                yield seen
