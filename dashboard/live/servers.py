"""Pods as the pages display them: those in trouble first, and by zone."""

from collections import defaultdict
from dataclasses import dataclass

from msgspec import structs

from controlplane.status.breakers import NO_DATA, BreakerStatus
from controlplane.status.facts import Facts, Server
from controlplane.status.servers import FleetSummary, ServerStatus, decides_some_locally
from controlplane.status.status import Status
from dashboard.live.breaker_looks import FACES
from dashboard.live.known import last_known_words


class ServerRow(ServerStatus, frozen=True, kw_only=True):
    word: str
    css: str
    #: "exact", "without Redis", or what is known of it.
    limits: str
    #: Whether answers of Redis come later than the deadline, so that it decides some calls locally.
    late: bool
    #: Breakers that this pod reports differently from the fleet.
    differs: tuple[str, ...]
    #: Whether shedding only observes.
    observes: bool = False
    #: Whether a gateway reports pods now.
    heard: bool = True

    @property
    def known(self) -> bool:
        """Whether its values are of now. Those of a silent pod, or without a gateway, are as last known."""
        return self.server.live and self.heard

    @property
    def mark(self) -> str:
        """Its kind on the map of the fleet: without a gateway, no pod is known to be well."""
        return self.kind if self.known else "silent"

    @property
    def word_now(self) -> str:
        """The word on the map: ``shared``, or ``last known: shared``."""
        return self.word if self.heard or not self.server.live else f"Last known: {self.word.lower()}"

    @property
    def calls_only(self) -> bool:
        """It gets no requests: its rate is that of its calls, which are no requests of the fleet."""
        load = self.server.load
        return load is not None and load.requests_per_s == 0 and self.server.calls_per_s > 0

    @property
    def last_known(self) -> str:
        return last_known_words(self.server.last_seen)

    @property
    def alone(self) -> bool:
        """Whether it decides without Redis: its own page lists what each limit allows then."""
        return self.known and self.server.mode in ("local", "drill")

    @property
    def kinds(self) -> str:
        """The kinds for the filter: a live pod has its mode also beside a problem with the configuration."""
        if not self.server.live:
            return self.kind
        unhealthy = ("unhealthy",) if self.unhealthy else ()
        return " ".join(dict.fromkeys((self.kind, self.server.mode, *unhealthy)))

    @property
    def pressed(self) -> bool:
        return self.known and self.server.load is not None and self.server.load.level != "normal"

    @property
    def pressure(self) -> str:
        return f"{(self.server.load.pressure if self.server.load else 0) / 1000:.2f}"

    @property
    def level(self) -> str:
        """The reaction of the pod to its pressure."""
        words = {"shed": "sheds the lowest tiers", "shed_hard": "serves only the highest tier"}
        if self.observes:
            words = {
                "shed": "would shed the lowest tiers, but is in trial mode",
                "shed_hard": "would serve only the highest tier, but is in trial mode",
            }
        return words.get(self.server.load.level if self.server.load else "", "sheds nothing")

    @property
    def cpu(self) -> str:
        return _percent(self.server.load.cpu if self.server.load else None)

    @property
    def memory(self) -> str:
        return _percent(self.server.load.memory if self.server.load else None)

    @property
    def unhealthy(self) -> str:
        return ", ".join(self.because)

    @property
    def p99_ms(self) -> str:
        return f"{(self.server.redis_p99_us or 0) / 1000:.1f}"


@dataclass(frozen=True, kw_only=True)
class Zone:
    name: str
    rows: tuple[ServerRow, ...]


@dataclass(frozen=True, kw_only=True)
class Fleet(FleetSummary):
    rows: tuple[ServerRow, ...]
    zones: tuple[Zone, ...]
    heard: bool

    @property
    def attention(self) -> int:
        return super().attention if self.heard else self.total


_WORDS = {
    "rejected": "Config rejected",
    "silent": "No heartbeat",
    "lag": "Old config",
    "local": "Local fallback",
    "drill": "Drill",
    "ramping": "Ramping up",
    "shared": "Shared",
}


def _percent(thousandths: int | None) -> str:
    return "unknown" if thousandths is None else f"{thousandths / 10:.0f} %"


def fleet_of(status: Status) -> Fleet:
    # Most breakers are seen alike by all pods.
    breakers = tuple(breaker for breaker in status.breakers if breaker.divided)
    rows = tuple(row_of(server, status.facts, status.fleet, breakers) for server in status.fleet.servers)
    return Fleet(**vars(status.fleet), rows=rows, zones=_zones(rows), heard=status.facts.current)


def row_of(
    status: ServerStatus, facts: Facts, fleet: FleetSummary, breakers: tuple[BreakerStatus, ...]
) -> ServerRow:
    return ServerRow(
        observes=facts.observes("shedding"),
        heard=facts.current,
        **structs.asdict(status),
        word=_WORDS[status.kind],
        css=_css(status.kind),
        limits=_limits(status.server, facts, fleet),
        late=facts.current and status.server.live and decides_some_locally(status.server, facts),
        differs=tuple(_differences(status.server, breakers)),
    )


def _css(kind: str) -> str:
    if kind == "shared":
        return ""
    return "st-open" if kind in ("rejected", "silent") else "st-warn"


def _limits(server: Server, facts: Facts, fleet: FleetSummary) -> str:
    if not (server.live and facts.current):
        return "unknown"
    if server.mode in ("local", "drill"):
        return "without Redis"
    if server.mode == "ramping":
        return "ramping up"
    if decides_some_locally(server, facts):
        return "some local"
    # The pods that made the local decisions are not known.
    return "exact" if fleet.measured and not fleet.decided_locally_per_s else "shared"


def _differences(server: Server, breakers: tuple[BreakerStatus, ...]) -> list[str]:
    words = []
    for breaker in breakers:
        view = server.breakers.get(breaker.name)
        if view is None or not server.live:
            continue
        effective = view.override or view.state
        if effective != breaker.effective and (effective, breaker.effective) != ("closed", NO_DATA):
            words.append(f"{breaker.name} {FACES[effective].word.lower()}")
    return words


def _zones(rows: tuple[ServerRow, ...]) -> tuple[Zone, ...]:
    """Rows by zone, each by name: the affected zone is visible before any name is read."""
    by_zone: dict[str, list[ServerRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.name):
        by_zone[row.server.zone or "no zone"].append(row)
    return tuple(Zone(name=name, rows=tuple(members)) for name, members in sorted(by_zone.items()))
