"""The metrics that Prometheus reads from the gateway."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from controlplane.fleet.call_figures import CallFigures, add_calls
from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.call_figures import call_figures
from controlplane.gateway.servers.primitive_track import permits_row
from controlplane.gateway.servers.rates import percentile_us
from controlplane.metric_catalogue import alerts as alert_metrics
from controlplane.metric_catalogue import fleet as fleet_metrics
from controlplane.metric_catalogue import processes as process_metrics
from controlplane.metric_catalogue import traffic
from controlplane.metric_catalogue.fleet import MAX_PROTECTED
from controlplane.metric_catalogue.traffic import MAX_DEPENDENCIES
from controlplane.status.permits import permits_of
from fuseboard.contract.load import MAX_PRIORITIES
from fuseboard.contract.primitives import LOCK_EVENTS, ONCE_EVENTS
from fuseboard.contract.protection_fields import OBSERVED_PARTS
from fuseboard.contract.sync import PERMIT_EVENTS
from fuseboard.contract.words import Reason

if TYPE_CHECKING:
    from controlplane.gateway.process import Gateway
    from controlplane.gateway.servers.fleet import Fleet

#: A dependency without a call for this long has no series of its protection.
CALLED_WITHIN_S = 3600.0
#: Kind of total -> the label of an outcome.
_OUTCOMES = (("calls", "done"), ("failures", "failed"), ("slow", "slow"), ("refused", "refused"))
#: Environment and dependency, and what the protection of its calls did.
Protected = list[tuple[list[str], CallFigures]]


class GatewayCollector(Collector):
    """Reads the gateway at every scrape, and stores nothing."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        #: When a dependency was last called, by the clock of this process.
        self._called: dict[tuple[str, str], float] = {}

    def collect(self) -> Iterable[Metric]:
        yield from self._requests()
        yield from self._fleets()
        yield from self._traffic()
        yield from self._configurations()
        yield from self._pressure()
        yield from self._observed()
        yield from self._locks()
        protected = self._protected()
        yield from self._calls(protected)
        yield from self._waits(protected)

    def _requests(self) -> Iterable[Metric]:
        counts = self._gateway.counts
        answers = process_metrics.GATEWAY_ANSWERS.family()
        for status, count in sorted(counts.answers.items()):
            answers.add_metric([str(status)], count)
        yield answers
        yield process_metrics.GATEWAY_SYNC_SECONDS.family(counts.cumulative(), counts.seconds)
        sums = [fleet.sums for fleet in self._gateway.fleets.values()]
        for metric, value in (
            (process_metrics.METRICS_BY_AGENT_TOKEN, counts.metrics_by_agent_token),
            (process_metrics.FLUSHES, counts.flushes),
            (process_metrics.FLUSH_FAILURES, counts.flush_failures),
            (process_metrics.ROWS_FLUSHED, counts.rows_flushed),
            (process_metrics.SERIES_SPANS, counts.series_spans),
            (process_metrics.SERIES_FAILURES, counts.series_failures),
            (process_metrics.SERIES_REFUSED, counts.series_refused),
            (process_metrics.REFUSAL_SAMPLES, counts.refusal_samples),
            (process_metrics.REFUSAL_SAMPLES_LEFT_OUT, counts.refusal_samples_left_out),
            (process_metrics.SERIES_LEFT_OUT, sum(one.series.left_out for one in sums)),
            (process_metrics.FAILED_CALLS_LEFT_OUT, sum(one.failed_calls.left_out for one in sums)),
            (process_metrics.DESCRIPTORS_LEFT_OUT, sum(one.descriptors.left_out for one in sums)),
            (process_metrics.RELOAD_FAILURES, counts.reload_failures),
        ):
            yield metric.family(value)
        writes = process_metrics.WRITES_REFUSED.family()
        for (environment, what), count in sorted(counts.refused_writes.total.items()):
            writes.add_metric([environment, what], count)
        yield writes
        for labelled, found in (
            (alert_metrics.ONCALL_MESSAGES, counts.oncall_messages),
            (alert_metrics.GATEWAY_WATCHDOG_PINGS, counts.watchdog_pings),
        ):
            family = labelled.family()
            for label, count in sorted(found.items()):
                family.add_metric([label], count)
            yield family

    def _fleets(self) -> Iterable[Metric]:
        fleets = self._gateway.fleets.values()
        servers = fleet_metrics.SERVERS.family()
        frozen = fleet_metrics.FROZEN.family()
        stale = process_metrics.STALE_BEATS.family()
        unknown = fleet_metrics.UNKNOWN_REVISIONS.family()
        dropped = process_metrics.PODS_DROPPED.family()
        refused = process_metrics.NEW_PODS_REFUSED.family()
        kept = process_metrics.KEPT_BYTES.family()
        cut = process_metrics.BEATS_CUT.family()
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

    def _traffic(self) -> Iterable[Metric]:
        requests, refused = traffic.REQUESTS.family(), traffic.REFUSED.family()
        locally, p99 = traffic.DECIDED_LOCALLY.family(), traffic.REDIS_P99.family()
        failed, calls = traffic.REDIS_FAILED.family(), traffic.CALLS.family()
        asked, down = traffic.REDIS_ASKED.family(), traffic.REDIS_PRIMARIES_DOWN.family()
        for fleet in self._gateway.fleets.values():
            of, milli = fleet.environment, fleet.sums.totals.milli
            requests.add_metric([of], milli.get(("requests", ""), 0) / 1000)
            locally.add_metric([of], milli.get(("decided_locally", ""), 0) / 1000)
            asked.add_metric([of], milli.get(("asked", ""), 0) / 1000)
            down.add_metric([of], fleet.primaries_down)
            for reason in Reason:
                if value := milli.get(("reason", reason.value), 0):
                    refused.add_metric([of, reason.value], value / 1000)
            for kind, label in (("timeouts", "timeout"), ("errors", "error")):
                failed.add_metric([of, label], milli.get((kind, ""), 0) / 1000)
            slowest = percentile_us(fleet.sums.totals.latency, 0.99)
            if slowest is not None:
                p99.add_metric([of], slowest / 1_000_000)
            configuration = self._gateway.configurations.get(of)
            for name in sorted(configuration.dependencies)[:MAX_DEPENDENCIES] if configuration else ():
                for kind, outcome in _OUTCOMES:
                    if value := milli.get((kind, name), 0):
                        calls.add_metric([of, name, outcome], value / 1000)
        return [requests, refused, locally, p99, asked, failed, down, calls]

    def _configurations(self) -> Iterable[Metric]:
        revision = process_metrics.GATEWAY_REVISION.family()
        sent = process_metrics.POLICIES_SENT.family()
        for configuration in self._gateway.configurations.values():
            revision.add_metric([configuration.environment], configuration.head.revision)
            sent.add_metric([configuration.environment], configuration.policies_sent)
        age = process_metrics.CONFIGURATION_AGE.family(self._gateway.configuration_age_s)
        return [revision, sent, age]

    def _pressure(self) -> Iterable[Metric]:
        pressed = fleet_metrics.PODS_BY_PRESSURE.family()
        shed = fleet_metrics.SHED_BY_PRIORITY.family()
        unready = fleet_metrics.PODS_UNREADY.family()
        granted = process_metrics.UNREADY_GRANTED.family()
        refused = process_metrics.UNREADY_REFUSED.family()
        changes = process_metrics.POD_LEVEL_CHANGES.family()
        caps = process_metrics.RETRY_CAP_CHANGES.family()
        for fleet in self._gateway.fleets.values():
            for level, number in sorted(fleet.protection.log.levels.items()):
                changes.add_metric([fleet.environment, level], number)
            caps.add_metric([fleet.environment], fleet.protection.log.caps)
            loads = [
                server.beat.load
                for server in fleet.servers.values()
                if server.beat.load is not None and server.state is ServerState.ONLINE
            ]
            for priority, per_s in _shed(fleet):
                shed.add_metric([fleet.environment, priority], per_s)
            for level, count in sorted(Counter(load.level.value for load in loads).items()):
                pressed.add_metric([fleet.environment, level], count)
            unready.add_metric([fleet.environment], sum(load.unready for load in loads))
            granted.add_metric([fleet.environment], fleet.protection.unready.granted)
            refused.add_metric([fleet.environment], fleet.protection.unready.refused)
        return [pressed, shed, unready, granted, refused, changes, caps]

    def _observed(self) -> Iterable[Metric]:
        observes = fleet_metrics.OBSERVES.family()
        requests = fleet_metrics.OBSERVED_REQUESTS.family()
        now_us = int(self._gateway.clock.wall() * 1_000_000)
        for name, configuration in self._gateway.configurations.items():
            for part in OBSERVED_PARTS:
                until_us: int = getattr(configuration.observe, f"{part}_until_us")
                observes.add_metric([name, part], float(until_us > now_us))
        for fleet in self._gateway.fleets.values():
            pods = (one for one in fleet.servers.values() if one.state is ServerState.ONLINE)
            requests.add_metric([fleet.environment], sum(one.observed_per_s for one in pods))
        return [observes, requests]

    def _locks(self) -> Iterable[Metric]:
        locks, once = fleet_metrics.LOCKS.family(), fleet_metrics.ONCE.family()
        permits, unreported = fleet_metrics.PERMITS.family(), fleet_metrics.PERMITS_UNREPORTED.family()
        held, longest = fleet_metrics.LOCKS_HELD.family(), fleet_metrics.LOCK_LONGEST.family()
        for fleet in self._gateway.fleets.values():
            for family, kind, events in (
                (locks, "locks", LOCK_EVENTS),
                (once, "once", ONCE_EVENTS),
                (permits, "permits", PERMIT_EVENTS),
            ):
                for event in events:
                    family.add_metric([fleet.environment, event], fleet.sums.primitive_events[kind, event])
            found = [
                server.beat.primitives
                for server in fleet.servers.values()
                if server.beat.primitives is not None and server.state is ServerState.ONLINE
            ]
            held.add_metric([fleet.environment], sum(one.holding for one in found))
            longest_ms = max((one.longest_ms for one in found), default=0)
            longest.add_metric([fleet.environment], longest_ms / 1000)
            shares = (
                permits_of(server.beat.server, permits_row(server.primitives.lately())).share
                for server in fleet.servers.values()
                if server.beat.permits is not None and server.state in (ServerState.ONLINE, ServerState.LATE)
            )
            unreported.add_metric([fleet.environment], max(shares, default=0.0))
        return [locks, held, longest, once, permits, unreported]

    def _calls(self, protected: Protected) -> Iterable[Metric]:
        slots = fleet_metrics.BULKHEAD_SLOTS.family()
        refused = fleet_metrics.BULKHEAD_REFUSED.family()
        retries = fleet_metrics.RETRIES.family()
        fallbacks = fleet_metrics.FALLBACKS.family()
        caps = fleet_metrics.RETRY_CAP.family()
        observed = fleet_metrics.OBSERVED_CALLS.family()
        for of, calls in protected:
            for tier in calls.tiers:
                for kind in ("limit", "active", "queued"):
                    slots.add_metric([*of, tier.tier, kind], getattr(tier, kind))
                refused.add_metric([*of, tier.tier, "full"], tier.full_per_s)
                refused.add_metric([*of, tier.tier, "timed_out"], tier.timed_out_per_s)
            retries.add_metric([*of, "retried"], calls.retries_per_s)
            retries.add_metric([*of, "helped"], calls.helped_per_s)
            retries.add_metric([*of, "no_budget"], calls.no_budget_per_s)
            retries.add_metric([*of, "exhausted"], calls.exhausted_per_s)
            observed.add_metric(of, calls.observed_per_s)
            fallbacks.add_metric([*of, "used"], calls.fallbacks_per_s)
            fallbacks.add_metric([*of, "failed"], calls.fallback_failures_per_s)
        for fleet in self._gateway.fleets.values():
            for name, cap in sorted(fleet.protection.caps.caps.items()):
                caps.add_metric([fleet.environment, name], cap)
        return [slots, refused, retries, fallbacks, observed, caps]

    def _waits(self, protected: Protected) -> Iterable[Metric]:
        took = fleet_metrics.CALL_SECONDS.family()
        queue = fleet_metrics.ADAPTIVE_QUEUE.family()
        reclaimed = fleet_metrics.BULKHEAD_RECLAIMED.family()
        nested = fleet_metrics.BULKHEAD_NESTED.family()
        for of, calls in protected:
            for kind, ms in (("mean", calls.mean_ms), ("p95", calls.p95_ms), ("wait_p95", calls.wait_p95_ms)):
                if ms is not None:
                    took.add_metric([*of, kind], ms / 1000)
            if calls.queue_size is not None and calls.queue_predicted is not None:
                queue.add_metric([*of, "places"], calls.queue_size)
                queue.add_metric([*of, "predicted"], calls.queue_predicted)
            reclaimed.add_metric(of, calls.reclaimed)
            nested.add_metric(of, calls.nested)
        return [took, queue, reclaimed, nested]

    def _protected(self) -> Protected:
        """Environment and dependency, and what the protection of its calls did: the busiest."""
        now, found = self._gateway.clock.monotonic(), []
        for fleet in self._gateway.fleets.values():
            configuration = self._gateway.configurations.get(fleet.environment)
            # Only configured names become series: pods can report any.
            known = configuration.protected if configuration is not None else frozenset()
            figures = add_calls([{"protection": call_figures(fleet.sums.totals.milli, known)}])
            for name, calls in figures.items():
                of = (fleet.environment, name)
                if calls.first_calls_per_s or calls.active or calls.queued or of not in self._called:
                    self._called[of] = now
                if now - self._called[of] < CALLED_WITHIN_S:
                    found.append((list(of), calls))
            for of in [of for of in self._called if of[0] == fleet.environment and of[1] not in figures]:
                del self._called[of]
        return nlargest(MAX_PROTECTED, found, key=lambda one: (one[1].first_calls_per_s, one[0]))


def _shed(fleet: "Fleet") -> list[tuple[str, float]]:
    """Priority -> requests per second that pods shed, the lowest priorities first."""
    found: dict[str, float] = defaultdict(float)
    for server in fleet.servers.values():
        if server.state is ServerState.ONLINE:
            for priority, (_, shed) in server.shed_by_priority.items():
                found[priority] += shed
    return sorted(found.items(), key=lambda one: int(one[0]))[:MAX_PRIORITIES]


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
