"""Breakers as the pages show them: worst first, each with a hue, a shape and a word."""

from collections import Counter
from dataclasses import dataclass

from django.utils.safestring import SafeString

from controlplane.fleet.live import DependencyFigures
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Override, Server
from dashboard.live.breaker_looks import FACES, Face
from dashboard.live.history import History
from dashboard.live.timeline import segments, shares
from dashboard.plots import band

#: A closed breaker above this part of its threshold is worth a look.
NEAR = 0.4
#: How far back the strip of a row reaches.
BAND_S = 6 * 3600


@dataclass(frozen=True, kw_only=True)
class SeenBy:
    server: str
    face: Face
    local: bool


@dataclass(frozen=True, kw_only=True)
class Breaker:
    name: str
    dependency: Dependency
    face: Face
    #: What the fleet does by itself, whoever holds it; and since when.
    state: str
    state_since: float | None
    since: float | None
    until: float | None
    calls: int
    failures: int
    consecutive: int
    traffic: DependencyFigures
    override: Override | None
    seen: tuple[SeenBy, ...]
    #: Live servers that see the fleet's state, or confirm the override.
    agree: int
    live: int
    marks: str
    #: Six hours of states, as one strip.
    band: SafeString

    @property
    def load(self) -> float:
        """Calls per second that would reach the dependency if nothing held them back."""
        return self.traffic.calls_per_s + self.traffic.refused_per_s

    @property
    def ratio(self) -> float:
        return self.failures / self.calls if self.calls else 0.0

    @property
    def threshold(self) -> float:
        return self.dependency.failure_percent / 100

    @property
    def near(self) -> bool:
        return self.face.kind == "closed" and self.calls >= 5 and self.ratio > self.threshold * NEAR

    @property
    def quiet(self) -> bool:
        return self.face.kind in ("closed", "stale")

    @property
    def css(self) -> str:
        return "st-warn" if self.near else self.face.css

    @property
    def label(self) -> str:
        """For readers who do not see the ring."""
        if self.override is not None:
            return f"{self.face.word} by {self.override.actor}"
        percent = self.dependency.failure_percent
        return f"{self.face.word}. {self.failures} of {self.calls} calls failed, threshold {percent} percent"

    @property
    def disagreeing(self) -> list[tuple[str, int]]:
        """Other states servers see, with how many see them."""
        other = Counter(view.face.word.lower() for view in self.seen if view.face != self.face)
        return other.most_common()


def breakers(facts: Facts, history: History) -> tuple[Breaker, ...]:
    """Every dependency's breaker, worst first: state, then failures, then volume."""
    built = [_breaker(dependency, facts, history) for dependency in facts.dependencies]
    return tuple(sorted(built, key=lambda b: (b.face.rank, not b.near, -round(b.ratio, 1), b.name)))


def _breaker(dependency: Dependency, facts: Facts, history: History) -> Breaker:
    name, override = dependency.name, _in_force(dependency.override, facts.now)
    live = facts.live_servers
    views = [(server, server.breakers[name]) for server in live if name in server.breakers]
    fleet = _fleet_view([view for _, view in views])
    face = FACES["no_data" if fleet is None else fleet.state]
    if override is not None:
        face = FACES[override.mode]
    seen = tuple(
        SeenBy(server=server.name, face=_face_of(server, name), local=_is_local(server, name))
        for server in live
    )
    return Breaker(
        name=name,
        dependency=dependency,
        face=face,
        state=fleet.state if fleet else "closed",
        state_since=fleet.since if fleet else None,
        since=override.made_at if override else fleet.since if fleet else None,
        until=override.expires_at if override else fleet.until if fleet else None,
        calls=fleet.calls if fleet else 0,
        failures=fleet.failures if fleet else 0,
        consecutive=fleet.consecutive if fleet else 0,
        traffic=facts.figures.dependencies.get(name, DependencyFigures()),
        override=override,
        seen=seen,
        agree=sum(view.face == face for view in seen),
        live=len(live),
        marks=history.marks(name),
        band=_band(dependency, facts, fleet),
    )


def _band(dependency: Dependency, facts: Facts, fleet: BreakerSeen | None) -> SafeString:
    # To the minute, so that the strip's bytes do not change every second.
    end = facts.now // 60 * 60 + 60
    start = end - BAND_S
    own = [transition for transition in facts.transitions if transition.dependency == dependency.name]
    state, since = (fleet.state, fleet.since) if fleet else ("closed", None)
    return band(shares(segments(own, state, since, start, end, facts.holds(dependency.name)), start, end))


def _in_force(override: Override | None, now: float) -> Override | None:
    return override if override is not None and override.expires_at > now else None


def _fleet_view(views: list[BreakerSeen]) -> BreakerSeen | None:
    """The newest generation is the fleet's; without Redis there is none, so what most servers see."""
    shared = [view for view in views if not view.local]
    if shared:
        return max(shared, key=lambda view: (view.generation, view.calls))
    common = Counter(view.state for view in views).most_common(1)
    return next((view for view in views if view.state == common[0][0]), None) if common else None


def _face_of(server: Server, name: str) -> Face:
    view = server.breakers.get(name)
    if view is None:
        return FACES["no_data"]
    return FACES[view.override or view.state]


def _is_local(server: Server, name: str) -> bool:
    view = server.breakers.get(name)
    return view is not None and view.local
