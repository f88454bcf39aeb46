"""Each pod's place in the fleet, those in trouble first, and the fleet in numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from controlplane.status.facts import Facts, Server

#: A pod sends a heartbeat every 5 s, so a lag below two of them says nothing yet.
LAG_WARN_S = 10.0
LAG_CRITICAL_S = 30.0

#: The most that a healthy pod has: waiting calls, p95 in thousandths of the SLA of its route, its own errors
#: per second, CPU in thousandths.
MAX_WAITING = 1_000
MAX_LATE = 1_000
MAX_ERRORS_PER_S = 10.0
MAX_CPU = 900
HEALTHY_WORDS = (
    f"{MAX_WAITING:,} waiting calls, p95 at {MAX_LATE / 10:.0f} % of the SLA of a route,"
    f" {MAX_ERRORS_PER_S:.0f} errors/s, and CPU at {MAX_CPU / 10:.0f} %"
)
#: A pod is unhealthy above this part of one of these, unless an admin chose another part.
UNHEALTHY_AT = 1.0

#: Kinds of pods, worst first.
KINDS = ("rejected", "silent", "lag", "local", "drill", "ramping", "shared")
_PLACES = {kind: place for place, kind in enumerate(KINDS)}


class ServerStatus(Struct, frozen=True, kw_only=True, gc=False):
    server: Server
    #: One of ``KINDS``.
    kind: str
    #: Seconds since the oldest revision that it has not applied.
    lag_s: float
    #: Why it is unhealthy; empty for a healthy pod, and for one that reports no load.
    because: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def troubled(self) -> bool:
        return self.kind != "shared"


@dataclass(frozen=True, kw_only=True)
class FleetSummary:
    """The pods by kind, and how far they are behind."""

    servers: tuple[ServerStatus, ...]
    #: Live pods by mode, whatever configuration they have: they may be ``lagging`` or ``rejected`` too.
    local: tuple[str, ...]
    drill: tuple[str, ...]
    ramping: tuple[str, ...]
    lagging: tuple[str, ...]
    silent: tuple[str, ...]
    rejected: tuple[str, ...]
    shared: int
    #: Live pods that decide together through Redis, whatever configuration they have.
    sharing: int
    #: Live pods with shared limits whose answers from Redis are later than the deadline: they decide some
    #: calls locally.
    late: tuple[str, ...]
    #: Every limit was decided by the whole fleet together; false also when that is not known.
    exact: bool
    decided_locally_per_s: float
    #: Whether rates of every live pod are known.
    measured: bool
    #: Live pods that have applied the newest revision, and all live pods.
    applied: int
    live: int
    divisor: int
    worst_lag_s: float
    worst_lag_server: str
    #: When the first of the present pods of each kind became one; ``None`` for none.
    local_since: float | None
    drill_since: float | None
    lagging_since: float | None
    silent_since: float | None
    versions: tuple[str, ...]
    #: Live pods that refuse requests because of pressure; that are unready; and that look unhealthy.
    pressed: tuple[str, ...] = ()
    unready: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return len(self.servers)

    @property
    def attention(self) -> int:
        return sum(server.troubled for server in self.servers)


def server_statuses(facts: Facts) -> tuple[ServerStatus, ...]:
    """Every pod that is not gone, the worst first."""
    at = unhealthy_at(facts.alert_rules)
    found = [server_status(server, facts, at) for server in facts.servers if server.state != "gone"]
    return tuple(sorted(found, key=lambda one: (_PLACES[one.kind], _well(one, facts), one.name)))


def _well(one: ServerStatus, facts: Facts) -> tuple[bool, bool, bool]:
    """Sorts pods of one kind: unhealthy first, then under pressure, then those that decide some locally.

    A figure would be finer, but it would also move the rows of a live list in each second.
    """
    load = one.server.load if one.server.live else None
    pressed = load is not None and load.level != "normal"
    return not one.because, not pressed, not (one.server.live and decides_some_locally(one.server, facts))


def server_status(server: Server, facts: Facts, at: float) -> ServerStatus:
    """The place of one pod, which is unhealthy above the part ``at``."""
    lag_s = facts.lag_s(server)
    because = unhealthy_because(server, at) if server.live and server.load is not None else ()
    return ServerStatus(server=server, kind=_kind(server, lag_s), lag_s=lag_s, because=because)


def _kind(server: Server, lag_s: float) -> str:
    if not server.live:
        return "silent"
    if server.config_status == "rejected":
        return "rejected"
    if server.mode in ("local", "drill"):
        return server.mode
    if lag_s > LAG_WARN_S:
        return "lag"
    return "ramping" if server.mode == "ramping" else "shared"


def decides_some_locally(server: Server, facts: Facts) -> bool:
    """Whether answers of Redis to a live pod with shared limits are later than the deadline."""
    return server.mode == "shared" and (server.redis_p99_us or 0) > facts.store_deadline_us


def unhealthy_at(alert_rules: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the part above which a pod is unhealthy: the threshold of the alert, as the admin chose it."""
    return float(alert_rules.get("unhealthy", {}).get("warning", UNHEALTHY_AT))


def unhealthy_because(server: Server, at: float) -> tuple[str, ...]:
    """Return the figures above the part ``at``; empty for a healthy pod, and for one that reports no load."""
    return tuple([words for part, words in _parts(server) if part > at])


def worst_part(server: Server) -> float:
    """Return the largest figure of a live pod, as a part of the most that a healthy pod has."""
    return max([part for part, _ in _parts(server)], default=0.0) if server.live else 0.0


def _parts(server: Server) -> list[tuple[float, str]]:
    """Return each figure as a part of the most that a healthy pod has, and in words."""
    load = server.load
    if load is None:
        return []
    late, cpu = load.late or 0, load.cpu or 0
    return [
        (load.waiting / MAX_WAITING, f"{load.waiting:,} calls wait"),
        (late / MAX_LATE, f"p95 of a route is {late / 10:.0f} % of its SLA"),
        (load.errors_per_s / MAX_ERRORS_PER_S, f"{load.errors_per_s:.0f} errors/s"),
        (cpu / MAX_CPU, f"CPU is at {cpu / 10:.0f} %"),
    ]


def spared_how(server: Server, *, observes: bool) -> str:
    """The relief for a pod that is under pressure or unhealthy. ``observes``: shedding refuses nothing."""
    load = server.load
    if load is None:
        return ""
    found = []
    if load.unready:
        found.append("unready, gets no new traffic")
    elif load.asks_unready:
        found.append("asks to be unready, but no gateway agrees")
    if load.level != "normal":
        tiers = "all but the highest tier" if load.level == "shed_hard" else "the lowest tiers"
        found.append(f"{'would shed' if observes else 'sheds'} {tiers}")
    return "; ".join(found) or "serves all traffic: it neither sheds nor asks to be unready"


def fleet_summary(facts: Facts, servers: tuple[ServerStatus, ...]) -> FleetSummary:
    by_kind = {kind: [one for one in servers if one.kind == kind] for kind in KINDS}
    live = [one for one in servers if one.server.live]
    sharing = sum(one.server.mode == "shared" for one in live)
    figures = facts.figures
    measured = figures.gateways > 0 and not figures.uncounted
    worst = max(live, key=lambda one: one.lag_s, default=None)
    late = tuple(one.name for one in live if decides_some_locally(one.server, facts))

    def names(kind: str) -> tuple[str, ...]:
        return tuple(one.name for one in by_kind[kind])

    def in_mode(mode: str) -> tuple[str, ...]:
        return tuple(one.name for one in live if one.server.mode == mode)

    def mode_since(mode: str) -> float | None:
        found = (one.server.mode_since for one in live if one.server.mode == mode)
        return min((since for since in found if since), default=None)

    return FleetSummary(
        servers=servers,
        local=in_mode("local"),
        drill=in_mode("drill"),
        ramping=in_mode("ramping"),
        lagging=names("lag"),
        silent=names("silent"),
        rejected=names("rejected"),
        shared=len(by_kind["shared"]),
        sharing=sharing,
        late=late,
        # A pod that is silent may still decide calls, without Redis.
        exact=0 < sharing == len(servers) and measured and not late and not figures.decided_locally_per_s,
        decided_locally_per_s=figures.decided_locally_per_s,
        measured=measured,
        applied=sum(not facts.behind(one.server) for one in live),
        live=len(live),
        divisor=facts.divisor,
        worst_lag_s=worst.lag_s if worst else 0.0,
        worst_lag_server=worst.name if worst and worst.lag_s > 0 else "",
        local_since=mode_since("local"),
        drill_since=mode_since("drill"),
        lagging_since=min(
            (at for one in by_kind["lag"] if (at := facts.behind_since(one.server)) is not None), default=None
        ),
        silent_since=min((one.server.last_seen for one in by_kind["silent"]), default=None),
        pressed=tuple(one.name for one in live if one.server.load and one.server.load.level != "normal"),
        unready=tuple(one.name for one in live if one.server.load and one.server.load.unready),
        unhealthy=tuple(one.name for one in live if one.because),
        versions=tuple(sorted({one.server.version for one in live if one.server.version})),
    )
