"""Pods read back from Postgres, so that a gateway that restarts still knows them."""

import msgspec

from controlplane.fleet.models import Server, ServerState
from controlplane.gateway.servers.liveness import JITTER, OFFLINE_LEASES, TRAVEL_S, due_after, lease_of
from controlplane.gateway.servers.server import KnownServer
from fuseboard.contract.load import PodLoad
from fuseboard.contract.shares import HeldShare
from fuseboard.contract.sync import Applied, BreakerView, SyncRequest
from fuseboard.contract.words import ConfigSource, ConfigStatus, Mode


def known_server_of(row: Server, *, now: float, wall: float) -> KnownServer:
    """The pod that a row describes. It keeps its state, and the time to the next state starts again."""
    seen_wall = row.last_seen_at.timestamp()
    next_s = max(0.05, ((row.due_at - row.last_seen_at).total_seconds() - TRAVEL_S) / JITTER)
    state = ServerState(row.state)
    return KnownServer(
        beat=_heartbeat_of(row),
        seen=now - _silence(state, next_s, wall - seen_wall),
        seen_wall=seen_wall,
        next_s=next_s,
        started_wall=row.started_at.timestamp(),
        state=state,
        adopted=True,
        has_asked=row.spending > 0,
        token=row.token,
        address=row.address,
        mode_since=(Mode(row.mode), row.mode_since.timestamp()),
    )


def _silence(state: ServerState, next_s: float, silent_s: float) -> float:
    """The shortest silence for this state: no gateway may have received the pod's heartbeats."""
    if state is ServerState.ONLINE:
        return 0.0
    if state is ServerState.LATE:
        return due_after(next_s) + 0.001
    if state is ServerState.UNKNOWN:
        return lease_of(next_s) + 0.001
    return max(silent_s, lease_of(next_s) * (1 + OFFLINE_LEASES) + 0.001)


def _heartbeat_of(row: Server) -> SyncRequest:
    return SyncRequest(
        environment=row.environment,
        service=row.service,
        server=row.name,
        boot=row.boot,
        sequence=0,
        agent_version=row.agent_version,
        zone=row.zone,
        applied=Applied(
            epoch=row.epoch,
            revision=row.revision,
            hash=row.config_hash,
            source=ConfigSource(row.config_source),
            status=ConfigStatus(row.config_status),
            error=row.config_error,
        ),
        mode=Mode(row.mode),
        mode_for_ms=_ms(row.last_seen_at.timestamp() - row.mode_since.timestamp()),
        mode_cause=row.mode_cause,
        load=_load_of(row.load),
        share=_share_of(row.share),
        breakers=tuple(_view_of(view, row.last_seen_at.timestamp()) for view in row.breakers),
        carries_counts=row.carries_counts,
        enforces_budgets=row.enforces_budgets,
        serves_node=row.serves_node,
    )


def _load_of(document: dict[str, object]) -> PodLoad | None:
    try:
        return msgspec.convert(document, PodLoad) if document else None
    except msgspec.ValidationError:
        # A gateway of a newer version wrote it. The next heartbeat brings it again.
        return None


def _share_of(document: dict[str, object]) -> HeldShare | None:
    try:
        return msgspec.convert(document, HeldShare) if document else None
    except msgspec.ValidationError:
        return None


def _view_of(view: dict[str, object], seen_wall: float) -> BreakerView:
    since, until = view["since"], view["until"]
    durations = {
        "for_ms": _ms(seen_wall - since) if isinstance(since, float | int) else 0,
        "remaining_ms": _ms(until - seen_wall) if isinstance(until, float | int) else 0,
    }
    return msgspec.convert({**view, **durations}, BreakerView)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
