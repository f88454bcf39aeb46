"""The live values of runbooks: one function for each name in ``controlplane.runbooks.format.VALUES``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.backlogs.figures import BacklogSeen
from controlplane.fleet.call_figures import CallFigures
from controlplane.fleet.models import RedisNode
from controlplane.phrases import number, percent
from controlplane.status.breakers import PHRASES
from dashboard.live.backlogs import wait_words
from dashboard.live.breakers import Breaker
from dashboard.live.known import rates_known
from dashboard.live.overview import Live
from dashboard.live.tiles import usual_p99_ms

UNKNOWN = "unknown"
#: A text, or ``None`` when nothing measures it.
_Value = Callable[["Scene"], str | None]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The sources of the values of one page."""

    live: Live
    #: That the runbook is read for.
    breaker: Breaker | None = None
    #: The servers of Redis as the worker read them within the last minute.
    nodes: Sequence[RedisNode] = ()

    @property
    def calls(self) -> CallFigures | None:
        """``None`` while no gateway measures, or without protection."""
        if self.breaker is None or not rates_known(self.live.facts):
            return None
        return self.breaker.protected

    @property
    def pods_known(self) -> bool:
        """Not while no gateway reports pods: their rows stay as they were."""
        return self.live.facts.current


def value_of(name: str, scene: Scene) -> str:
    """The value as a person reads it, or ``unknown``."""
    found = _VALUES[name](scene)
    return UNKNOWN if found is None else found


def _usual_p99(scene: Scene) -> str:
    """The p99 below which Redis is as usual: the deadline where the rule is off."""
    usual_ms = usual_p99_ms(scene.live.facts)
    return f"{scene.live.facts.store_deadline_ms if usual_ms is None else usual_ms:g} ms"


def _measured(read: _Value) -> _Value:
    """The value that ``read`` finds, or ``None`` while the rates of the fleet are unknown."""
    return lambda scene: read(scene) if rates_known(scene.live.facts) else None


def _rate(read: Callable[[Scene], float | None]) -> _Value:
    @_measured
    def value(scene: Scene) -> str | None:
        found = read(scene)
        return None if found is None else f"{number(found)}/s"

    return value


def _pods(read: Callable[[Scene], int]) -> _Value:
    def value(scene: Scene) -> str | None:
        return f"{read(scene)} of {scene.live.fleet.live}" if scene.pods_known else None

    return value


def _of_breaker(read: Callable[[Breaker], str | None]) -> _Value:
    def value(scene: Scene) -> str | None:
        known = scene.breaker is not None and scene.pods_known
        return read(scene.breaker) if scene.breaker is not None and known else None

    return value


def _alerts_evaluated(scene: Scene) -> str | None:
    at = scene.live.facts.evaluated_at
    return None if at is None else f"{max(0.0, scene.live.facts.now - at):.0f} s ago"


def _state(breaker: Breaker) -> str:
    since = f" since {datetime.fromtimestamp(breaker.since, UTC):%H:%M:%S} UTC" if breaker.since else ""
    return f"{PHRASES[breaker.effective]}{since}"


def _failures(breaker: Breaker) -> str | None:
    return f"{breaker.failures} of {breaker.calls} calls" if breaker.calls else None


def _slots(scene: Scene) -> str | None:
    calls = scene.calls
    return f"{calls.active} of {calls.limit} slots" if calls is not None and calls.limit else None


@_measured
def _busiest(scene: Scene) -> str:
    rows = scene.live.facts.figures.tenants
    top = max(rows, key=lambda row: row.requests_per_s, default=None)
    return f"{top.tenant} with {number(top.requests_per_s)} requests/s" if top is not None else "none"


@_measured
def _most_refused(scene: Scene) -> str:
    facts = scene.live.facts
    refused = [
        row for row in facts.figures.tenants if row.refused_per_s > 0 and row.tenant not in facts.suspended
    ]
    top = max(refused, key=lambda row: row.refused_per_s, default=None)
    if top is None:
        return "none"
    return f"{top.tenant} with {number(top.refused_per_s)} of {number(top.requests_per_s)} requests/s"


def _lag(scene: Scene) -> str | None:
    if not scene.pods_known or not scene.live.fleet.live:
        return None
    worst = scene.live.fleet.worst_lag_server
    return f"{scene.live.fleet.worst_lag_s:.0f} s" + (f" on {worst}" if worst else "")


def _revision(scene: Scene) -> str | None:
    applied = _pods(lambda scene: scene.live.fleet.applied)(scene)
    return f"{scene.live.facts.revision} on {applied} pods" if applied is not None else None


@_measured
def _p99(scene: Scene) -> str | None:
    p99_us = scene.live.facts.figures.store.p99_us
    return None if p99_us is None else f"{p99_us / 1000:.1f} ms"


def _redis_down(scene: Scene) -> str | None:
    store = scene.live.facts.figures.store
    return f"{store.primaries_down} of {store.primaries} primaries" if store.primaries else None


@_measured
def _failed_checks(scene: Scene) -> str | None:
    store = scene.live.facts.figures.store
    return percent(store.failed_share) if store.asked_per_s else None


def _each_node(read: Callable[[RedisNode], str]) -> _Value:
    def value(scene: Scene) -> str | None:
        found = [f"{node.address} {read(node)}" for node in scene.nodes if node.up]
        return ", ".join(found) or None

    return value


def _memory(node: RedisNode) -> str:
    used = f"{node.memory_bytes / 1_048_576:,.0f} MiB"
    limit = node.memory_limit_bytes
    return f"{used} of {limit / 1_048_576:,.0f} MiB" if limit else f"{used}, without a limit"


def _replica_lag(scene: Scene) -> str | None:
    found = [f"{node.address} {node.lag_s:.0f} s" for node in scene.nodes if node.lag_s is not None]
    return ", ".join(found) or None


def _of_backlog(read: Callable[[BacklogSeen], str]) -> _Value:
    def value(scene: Scene) -> str | None:
        name = scene.breaker.name if scene.breaker is not None else ""
        found = next((one for one in scene.live.facts.backlogs if one.dependency == name), None)
        return read(found) if found is not None else None

    return value


def _backlog_jobs(seen: BacklogSeen) -> str:
    figures = seen.figures
    lost = f", {figures.overdue:,} of workers that died" if figures.overdue else ""
    return (
        f"{figures.jobs:,} of {seen.max_jobs:,}: {figures.ready:,} ready, {figures.delayed:,} delayed,"
        f" {figures.held:,} with workers{lost}"
    )


def _fallbacks(scene: Scene) -> str | None:
    """None is not 0: a service that handles a blocked call itself has a fallback that no pod counts."""
    if scene.calls is None:
        return None
    used = scene.calls.fallbacks_per_s
    return f"{number(used)}/s" if used else "none by the agent; those of the service itself are not counted"


_VALUES: dict[str, _Value] = {
    "alerts_evaluated": _alerts_evaluated,
    "backlog_dead": _of_backlog(lambda seen: f"{seen.figures.dead:,}"),
    "backlog_jobs": _of_backlog(_backlog_jobs),
    "backlog_wait": _of_backlog(lambda seen: wait_words(seen.waiting_s)),
    "blocked": _rate(lambda scene: scene.breaker.traffic.refused_per_s if scene.breaker else None),
    "breaker_failures": _of_breaker(_failures),
    "breaker_state": _of_breaker(_state),
    "bulkhead_refused": _rate(lambda scene: scene.calls.refused_per_s if scene.calls else None),
    "bulkhead_slots": _slots,
    "busiest_tenant": _busiest,
    "call_p99": _of_breaker(lambda breaker: None if breaker.p99_ms is None else f"{breaker.p99_ms:.0f} ms"),
    "calls": _rate(lambda scene: scene.breaker.traffic.calls_per_s if scene.breaker else None),
    "config_lag": _lag,
    "decided_locally": _rate(lambda scene: scene.live.facts.figures.decided_locally_per_s),
    "divisor": lambda scene: f"1/{scene.live.facts.divisor}" if scene.pods_known else None,
    "fallbacks": _measured(_fallbacks),
    "gateways": lambda scene: str(scene.live.facts.figures.gateways) if not scene.live.facts.stale else None,
    # From the configuration, so it is known without a gateway, too.
    "owner": lambda scene: (scene.breaker.dependency.owner or "not named") if scene.breaker else None,
    "pods_lagging": _pods(lambda scene: len(scene.live.fleet.lagging)),
    "pods_live": lambda scene: str(scene.live.fleet.live) if scene.pods_known else None,
    "pods_local": _pods(lambda scene: len(scene.live.fleet.local)),
    "pods_pressed": _pods(lambda scene: len(scene.live.fleet.pressed)),
    "pods_rejected": _pods(lambda scene: len(scene.live.fleet.rejected)),
    "pods_silent": lambda scene: str(len(scene.live.fleet.silent)) if scene.pods_known else None,
    "pods_unready": _pods(lambda scene: len(scene.live.fleet.unready)),
    "postgres": lambda scene: "down" if scene.live.facts.stale else "up",
    # From the configuration, so they are known without a gateway, too.
    "redis_deadline": lambda scene: f"{scene.live.facts.store_deadline_ms:g} ms",
    "redis_down": _redis_down,
    "redis_failed_checks": _failed_checks,
    "redis_lag": _replica_lag,
    "redis_memory": _each_node(_memory),
    "redis_ops": _each_node(lambda node: f"{node.ops_per_s or 0:,.0f} commands/s"),
    "redis_p99": _p99,
    "redis_usual": _usual_p99,
    "refused_share": _measured(lambda scene: percent(scene.live.facts.figures.refused_share)),
    "refused_tenant": _most_refused,
    "retries": _rate(lambda scene: scene.calls.retries_per_s if scene.calls else None),
    "revision": _revision,
    "schedules_failed": lambda scene: (
        None if scene.live.facts.stale else str(scene.live.facts.schedules_failed)
    ),
    "shed": _rate(lambda scene: scene.live.facts.figures.refused_by_reason.get("shed", 0.0)),
    "slow_calls": _rate(lambda scene: scene.breaker.traffic.slow_per_s if scene.breaker else None),
    "vendor_refused": _rate(
        lambda scene: scene.live.facts.figures.refused_by_reason.get("vendor_limit", 0.0)
    ),
    "without_retry_budget": _rate(lambda scene: scene.calls.no_budget_per_s if scene.calls else None),
}
