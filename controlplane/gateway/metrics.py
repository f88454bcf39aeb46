"""What Prometheus reads from the gateway."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.fleet.call_figures import CallFigures, add_calls
from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.call_figures import call_figures
from fuseboard.contract.protection_fields import OBSERVED_PARTS

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
        yield from self._pressure()
        yield from self._observed()
        yield from self._calls()
        yield from self._waits()

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
            ("series_spans", "Spans of 10 s written to the history.", counts.series_spans),
            (
                "series_failures",
                "Writings of the history that Postgres did not take.",
                counts.series_failures,
            ),
            (
                "series_refused",
                "Values left out of the history, because there are too many names.",
                counts.series_refused,
            ),
            ("refusal_samples", "Samples of refusals taken from pods.", counts.refusal_samples),
            (
                "refusal_samples_left_out",
                "Samples of refusals left out, because there were too many.",
                counts.refusal_samples_left_out,
            ),
            (
                "series_left_out",
                "Differences left out of the history, because another gateway may have counted them.",
                sum(fleet.series.left_out for fleet in self._gateway.fleets.values()),
            ),
            (
                "failed_calls_left_out",
                "Reports of failed calls left out, because there are too many dependencies.",
                sum(fleet.failed_calls.left_out for fleet in self._gateway.fleets.values()),
            ),
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

    def _pressure(self) -> Iterable[Metric]:
        pressed = GaugeMetricFamily(
            "fuseboard_fleet_pods_by_pressure",
            "Pods that report how busy they are, by level: normal, shed, or shed_hard.",
            labels=["environment", "level"],
        )
        unready = GaugeMetricFamily(
            "fuseboard_fleet_pods_unready",
            "Pods that are unready because of pressure.",
            labels=["environment"],
        )
        granted = CounterMetricFamily(
            "fuseboard_gateway_unready_granted",
            "Times a pod under pressure was allowed to be unready.",
            labels=["environment"],
        )
        refused = CounterMetricFamily(
            "fuseboard_gateway_unready_refused",
            "Heartbeats that asked to be unready while enough pods of the service were.",
            labels=["environment"],
        )
        changes = CounterMetricFamily(
            "fuseboard_gateway_pod_level_changes",
            "Changes of what pods shed, by the new level: normal, shed, or shed_hard.",
            labels=["environment", "level"],
        )
        caps = CounterMetricFamily(
            "fuseboard_gateway_retry_cap_changes",
            "Changes of retry caps that the log has.",
            labels=["environment"],
        )
        for fleet in self._gateway.fleets.values():
            for level, number in sorted(fleet.protection.log.levels.items()):
                changes.add_metric([fleet.environment, level], number)
            caps.add_metric([fleet.environment], fleet.protection.log.caps)
            loads = [
                server.beat.load
                for server in fleet.servers.values()
                if server.beat.load is not None and server.state is ServerState.ONLINE
            ]
            for level, count in sorted(Counter(load.level.value for load in loads).items()):
                pressed.add_metric([fleet.environment, level], count)
            unready.add_metric([fleet.environment], sum(load.unready for load in loads))
            granted.add_metric([fleet.environment], fleet.protection.unready.granted)
            refused.add_metric([fleet.environment], fleet.protection.unready.refused)
        return [pressed, unready, granted, refused, changes, caps]

    def _observed(self) -> Iterable[Metric]:
        observes = GaugeMetricFamily(
            "fuseboard_fleet_protection_observes",
            "1 while a part of the protection decides and counts, but refuses nothing.",
            labels=["environment", "part"],
        )
        requests = GaugeMetricFamily(
            "fuseboard_fleet_observed_requests_per_second",
            "Requests that shedding would refuse if it did not only observe.",
            labels=["environment"],
        )
        now_us = int(self._gateway.clock.wall() * 1_000_000)
        for name, configuration in self._gateway.configurations.items():
            for part in OBSERVED_PARTS:
                until_us: int = getattr(configuration.observe, f"{part}_until_us")
                observes.add_metric([name, part], float(until_us > now_us))
        for fleet in self._gateway.fleets.values():
            pods = (one for one in fleet.servers.values() if one.state is ServerState.ONLINE)
            requests.add_metric([fleet.environment], sum(one.observed_per_s for one in pods))
        return [observes, requests]

    def _calls(self) -> Iterable[Metric]:
        of_dependency = ["environment", "dependency"]
        slots = GaugeMetricFamily(
            "fuseboard_fleet_bulkhead_slots",
            "Bulkheads of all pods together: limit, active and queued calls.",
            labels=[*of_dependency, "tier", "kind"],
        )
        refused = GaugeMetricFamily(
            "fuseboard_fleet_bulkhead_refused_per_second",
            "Calls that bulkheads refused in the last 30 s: full, or timed_out in the queue.",
            labels=[*of_dependency, "tier", "reason"],
        )
        retries = GaugeMetricFamily(
            "fuseboard_fleet_retries_per_second",
            "Retries of the last 30 s: retried, helped, or no_budget.",
            labels=[*of_dependency, "verdict"],
        )
        fallbacks = GaugeMetricFamily(
            "fuseboard_fleet_fallbacks_per_second",
            "Answers of fallbacks in the last 30 s: used, or failed.",
            labels=[*of_dependency, "outcome"],
        )
        caps = GaugeMetricFamily(
            "fuseboard_fleet_retry_cap",
            "Retries per 1,000 s that one pod may make besides its budget.",
            labels=of_dependency,
        )
        observed = GaugeMetricFamily(
            "fuseboard_fleet_observed_calls_per_second",
            "Calls of the last 30 s that parts in observe mode would have refused.",
            labels=of_dependency,
        )
        for of, calls in self._protected():
            for tier in calls.tiers:
                for kind in ("limit", "active", "queued"):
                    slots.add_metric([*of, tier.tier, kind], getattr(tier, kind))
                refused.add_metric([*of, tier.tier, "full"], tier.full_per_s)
                refused.add_metric([*of, tier.tier, "timed_out"], tier.timed_out_per_s)
            retries.add_metric([*of, "retried"], calls.retries_per_s)
            retries.add_metric([*of, "helped"], calls.helped_per_s)
            retries.add_metric([*of, "no_budget"], calls.no_budget_per_s)
            observed.add_metric(of, calls.observed_per_s)
            fallbacks.add_metric([*of, "used"], calls.fallbacks_per_s)
            fallbacks.add_metric([*of, "failed"], calls.fallback_failures_per_s)
        for fleet in self._gateway.fleets.values():
            for name, cap in sorted(fleet.protection.caps.caps.items()):
                caps.add_metric([fleet.environment, name], cap)
        return [slots, refused, retries, fallbacks, observed, caps]

    def _waits(self) -> Iterable[Metric]:
        of_dependency = ["environment", "dependency"]
        took = GaugeMetricFamily(
            "fuseboard_fleet_call_seconds",
            "Means over the pods: how long calls take (mean, p95), and wait for a slot (wait_p95).",
            labels=[*of_dependency, "kind"],
        )
        queue = GaugeMetricFamily(
            "fuseboard_fleet_adaptive_queue",
            "Adaptive queues of all pods: places, and the calls that Little's law predicts in them.",
            labels=[*of_dependency, "kind"],
        )
        reclaimed = GaugeMetricFamily(
            "fuseboard_fleet_bulkhead_reclaimed",
            "Calls since the start of the pods that were never reported, and lost their slots.",
            labels=of_dependency,
        )
        nested = GaugeMetricFamily(
            "fuseboard_fleet_bulkhead_nested",
            "Calls since the start of the pods that found no free slot while their own task had one.",
            labels=of_dependency,
        )
        for of, calls in self._protected():
            for kind, ms in (("mean", calls.mean_ms), ("p95", calls.p95_ms), ("wait_p95", calls.wait_p95_ms)):
                if ms is not None:
                    took.add_metric([*of, kind], ms / 1000)
            if calls.queue_size is not None and calls.queue_predicted is not None:
                queue.add_metric([*of, "places"], calls.queue_size)
                queue.add_metric([*of, "predicted"], calls.queue_predicted)
            reclaimed.add_metric(of, calls.reclaimed)
            nested.add_metric(of, calls.nested)
        return [took, queue, reclaimed, nested]

    def _protected(self) -> Iterator[tuple[list[str], CallFigures]]:
        """Environment and dependency, and what the protection of its calls did."""
        for fleet in self._gateway.fleets.values():
            configuration = self._gateway.configurations.get(fleet.environment)
            # Only configured names become series: pods can report any.
            known = configuration.protected if configuration is not None else frozenset()
            found = {"protection": call_figures(fleet.totals.milli)}
            for name, calls in add_calls([found]).items():
                if name in known:
                    yield [fleet.environment, name], calls


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
