"""Pods as rows of ``fleet_server``: what Postgres stores, and what web processes get while it is down."""

from msgspec import Struct

from controlplane.gateway.servers.liveness import due_after
from controlplane.gateway.servers.primitive_track import permits_row, primitives_row
from controlplane.gateway.servers.rates import percentile_us
from controlplane.gateway.servers.server import SAME_MOMENT_S, BreakerRow, KnownServer
from controlplane.publishing.unknown_revisions import LARGEST
from fuseboard.contract.sync import BreakerView, SeenLimit
from fuseboard.contract.words import ConfigSource, ConfigStatus, Mode


class Row(Struct, gc=False):
    """The columns of ``fleet_server``; times in unix seconds."""

    environment: str
    name: str
    boot: str
    service: str
    zone: str
    agent_version: str
    state: str
    mode: Mode
    mode_since: float
    mode_cause: str
    epoch: int
    revision: int
    config_hash: str
    config_status: ConfigStatus
    config_source: ConfigSource
    config_error: str
    started_at: float
    last_seen_at: float
    due_at: float
    left_at: float | None
    calls_per_s: float
    redis_p99_us: int | None
    gateway: str
    rivals: int
    spending: int
    breakers: list[BreakerRow]
    load: dict[str, object]
    token: str
    address: str
    share: dict[str, int]
    alone: dict[str, int]
    primitives: dict[str, object] | None
    carries_counts: bool
    uncharged: list[list[str]]
    seen: list[tuple[object, ...]]
    enforces_budgets: bool
    serves_node: bool
    permits: dict[str, int]


#: Fields of ``PodLoad`` that pages display.
_LOAD = (
    "pressure",
    "cpu",
    "throttled",
    "memory",
    "lag_ms",
    "in_flight",
    "waiting",
    "p95_ms",
    "asks_unready",
    "unready",
    "late",
    "shares_idle",
)


#: Kind of a count of the protection of calls -> the field of its sum over all dependencies.
_SLOTS = {"slots_limit": "slots", "slots_active": "slots_in_use", "slots_queued": "queued"}
_CALL_RATES = {
    "slots_full": "calls_refused_per_s",
    "slots_timed_out": "calls_refused_per_s",
    "retries": "retries_per_s",
    "retries_no_budget": "retries_no_budget_per_s",
    "fallbacks": "fallbacks_per_s",
    "observed": "observed_calls_per_s",
}


def row_of(server: KnownServer, gateway: str = "") -> Row:
    beat, applied = server.beat, server.beat.applied
    lately = server.primitives.lately()
    return Row(
        beat.environment,
        beat.server,
        beat.boot,
        beat.service,
        beat.zone,
        beat.agent_version,
        server.state.value,
        beat.mode,
        _mode_since(server),
        beat.mode_cause,
        min(applied.epoch, LARGEST),
        min(applied.revision, LARGEST),
        applied.hash,
        applied.status,
        applied.source,
        applied.error,
        server.started_wall,
        server.seen_wall,
        server.seen_wall + due_after(server.next_s),
        server.left_wall,
        _calls_per_s(server),
        percentile_us(server.rates.latency, 0.99),
        gateway,
        server.rivals,
        server.spending,
        _breakers(server),
        _load(server),
        server.token,
        server.address,
        _share(server),
        _alone(server),
        primitives_row(server.beat.primitives, lately, server.seen_wall),
        beat.carries_counts,
        [[one.dependency, one.measure] for one in server.beat.uncharged],
        [_seen(one, server.seen_wall) for one in server.beat.seen],
        beat.enforces_budgets,
        beat.serves_node,
        permits_row(lately),
    )


def _seen(one: SeenLimit, seen_wall: float) -> tuple[object, ...]:
    """See ``controlplane.fleet.stated_limits.PodSeen``."""
    since = round(seen_wall - one.for_ms / 1000) if one.answers else 0
    stated = (one.said, one.followed, one.answers, since, one.left)
    calls = (one.sent, one.refused, one.blocked, one.others)
    return (one.dependency, one.limit, *stated, *calls, one.took_ms, one.lowest_ms)


def _share(server: KnownServer) -> dict[str, int]:
    """The reserved share that the pod says it has."""
    held = server.beat.share
    return {} if held is None else {"level": held.level, "place": held.place, "terms": held.terms}


def _alone(server: KnownServer) -> dict[str, int]:
    """Calls that it allowed without Redis and has not reported, or did not count; 0 is left out."""
    alone = server.beat.alone
    if alone is None:
        return {}
    counts = {name: getattr(alone, name) for name in alone.__struct_fields__}
    return {name: count for name, count in counts.items() if count}


def _load(server: KnownServer) -> dict[str, object]:
    load = server.beat.load
    if load is None:
        return {}
    found: dict[str, object] = {name: getattr(load, name) for name in _LOAD}
    return found | {
        "level": load.level.value,
        "cause": load.cause,
        "errors_per_s": round(server.errors_per_s, 3),
        "observed_per_s": round(server.observed_per_s, 3),
        "requests_per_s": _requests_per_s(server),
        "priority_rates": {
            priority: [round(rate, 3) for rate in rates]
            for priority, rates in server.shed_by_priority.items()
        },
        **_calls(server),
    }


def _calls(server: KnownServer) -> dict[str, float]:
    """Slots and rates of the protection of its calls, summed over all dependencies; 0 is left out."""
    found: dict[str, float] = {}
    for (kind, _), value in server.rates.counts.items():
        if field := _SLOTS.get(kind):
            found[field] = found.get(field, 0) + value
        elif field := _CALL_RATES.get(kind):
            found[field] = round(found.get(field, 0) + value / 1000, 3)
    return found


def _requests_per_s(server: KnownServer) -> float:
    return server.rates.counts.get(("requests", ""), 0) / 1000


def _calls_per_s(server: KnownServer) -> float:
    """Its requests; of a pod that gets none, such as a worker, its calls."""
    counts = server.rates.counts
    requests = _requests_per_s(server)
    return requests or sum([value for (kind, _), value in counts.items() if kind == "calls"]) / 1000


def _mode_since(server: KnownServer) -> float:
    mode, read = server.beat.mode, server.seen_wall - server.beat.mode_for_ms / 1000
    known = server.mode_since
    since = read if known is None or known[0] is not mode else _steady(known[1], read)
    server.mode_since = (mode, since)
    return since


def _breakers(server: KnownServer) -> list[BreakerRow]:
    known: dict[str, BreakerRow] = server.breaker_rows
    rows = [_breaker(view, server.seen_wall, known.get(view.dependency)) for view in server.beat.breakers]
    server.breaker_rows = {row.dependency: row for row in rows}
    # One row per dependency, also of a pod that was adopted with a repeated one.
    return list(server.breaker_rows.values())


def _breaker(view: BreakerView, seen_wall: float, known: BreakerRow | None) -> BreakerRow:
    since = seen_wall - view.for_ms / 1000
    until = seen_wall + view.remaining_ms / 1000 if view.remaining_ms else None
    return BreakerRow(
        view.dependency,
        view.state,
        view.generation,
        since if known is None else _steady(known.since, since),
        until if known is None or known.until is None or until is None else _steady(known.until, until),
        view.override,
        view.local,
        view.window_calls,
        view.window_failures,
        view.consecutive_failures,
    )


def _steady(known: float, read: float) -> float:
    """Two readings of one moment differ slightly. The first one stays."""
    return known if abs(known - read) < SAME_MOMENT_S else read
