"""An environment as this gateway sees it by itself: facts for the rules of alerts."""

from controlplane.fleet.live import FleetFigures, StoreFigures
from controlplane.fleet.models import ServerState
from controlplane.gateway.servers.fleet import Fleet
from controlplane.status.facts import Facts, Server
from controlplane.status.facts import ServerState as State

_STATES: dict[ServerState, State] = {
    ServerState.ONLINE: "online",
    ServerState.LATE: "late",
    ServerState.UNKNOWN: "unknown",
    ServerState.OFFLINE: "offline",
}


def facts_of(
    environment: str, fleet: Fleet | None, *, now: float, as_of: float, evaluated_at: float
) -> Facts:
    """Only what rules of level 3 use. ``fleet`` is ``None`` if no pod has reported."""
    pods: tuple[Server, ...] = ()
    store = StoreFigures()
    if fleet is not None:
        store = StoreFigures(primaries=fleet.primaries, primaries_down=fleet.primaries_down)
        pods = tuple(
            Server(
                name=pod.beat.server,
                state=_STATES[pod.state],
                mode=pod.beat.mode.value,
                mode_since=pod.seen_wall - pod.beat.mode_for_ms / 1000,
                last_seen=pod.seen_wall,
            )
            for pod in fleet.servers.values()
            if pod.state is not ServerState.GONE
        )
    return Facts(
        now=now,
        as_of=as_of,
        environment=environment,
        servers=pods,
        figures=FleetFigures(
            gateways=1, live_servers=fleet.size.live_servers if fleet is not None else 0, store=store
        ),
        evaluated_at=evaluated_at,
    )
