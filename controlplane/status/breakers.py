"""Each dependency's breaker, as the whole fleet has it. Its look is the dashboard's."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from controlplane.fleet.call_figures import CallFigures
from controlplane.fleet.live import DependencyFigures
from controlplane.phrases import count
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Override, Server, Transition
from controlplane.status.incidents import (
    HOUR_S,
    NOT_CLOSED,
    Incident,
    closed_since,
    incident_of,
    open_ratio,
    trip_words,
)

#: No live pod reports the breaker.
NO_DATA = "no_data"
#: Every state and override mode, worst first, as in a sentence: "search is probing".
PHRASES = {
    "open": "open",
    "half_open": "probing",
    "forced_open": "forced open",
    "forced_closed": "forced closed",
    "metrics_only": "in metrics-only mode",
    "disabled": "disabled",
    "closed": "closed",
    NO_DATA: "unknown",
}
WORST_FIRST = tuple(PHRASES)
#: Overrides under which a breaker lets calls through and cannot open.
CANNOT_OPEN = frozenset(("forced_closed", "metrics_only", "disabled"))
#: States and overrides under which a breaker refuses calls. One that probes lets only a few pass.
REFUSING = frozenset(("open", "half_open", "forced_open"))
#: How long before its end an override is announced: 5 minutes, or the last half of a shorter one.
ENDS_SOON_S = 300.0
#: A closed breaker whose failures exceed this part of its threshold, out of enough calls, is near it.
NEAR = 0.4
NEAR_CALLS = 5


@dataclass(frozen=True, kw_only=True)
class SeenBy:
    """The breaker as one live pod reports it."""

    server: str
    #: The mode of the override the pod applies, or else its state; ``no_data`` when it reports none.
    effective: str
    #: Decided by this pod alone.
    local: bool


@dataclass(frozen=True, kw_only=True)
class BreakerStatus:
    name: str
    dependency: Dependency
    #: The mode of the override in force, or else the fleet's state: one of ``WORST_FIRST``.
    effective: str
    #: The fleet's own state, which an override covers but does not change; and since when.
    state: str
    state_since: float | None
    #: When the effective state began, and when it ends or may probe. An open or half-open breaker counts
    #: from its trip, over all failed probes; ``None`` for a closed one of which no trip is known.
    since: float | None
    until: float | None
    #: When the present open time or override began.
    period_since: float | None
    #: Start of the fleet's state; ``None`` while it is closed, and while its transitions are not collected.
    incident: Incident | None
    calls: int
    failures: int
    consecutive: int
    #: The part of the last hour in which the fleet's breaker was open.
    open_share: float
    traffic: DependencyFigures
    override: Override | None
    #: The override ends within minutes: see ``ENDS_SOON_S``.
    ends_soon: bool
    #: Figures of the protection of its calls; ``None`` without a part of it, or a pod that reports it.
    protected: CallFigures | None
    #: How many live pods report each (effective state, decided by the pod alone).
    views: Mapping[tuple[str, bool], int]
    #: The live pods.
    servers: tuple[Server, ...]
    #: Live pods that report the effective state, which is how an override is confirmed; and all live pods.
    agree: int
    live: int

    @property
    def seen_by(self) -> tuple[SeenBy, ...]:
        """Made when a page lists pods: 200 breakers of 1,000 pods would be 200,000 of them in each tick."""
        return tuple(_seen_by(server, self.name, self.state) for server in self.servers)

    @property
    def load(self) -> float:
        """Calls per second that would reach the dependency if the breaker let all of them through."""
        return self.traffic.calls_per_s + self.traffic.refused_per_s

    @property
    def trip(self) -> Transition | None:
        return self.incident.trip if self.incident is not None else None

    @property
    def alone(self) -> bool:
        """No pod reports the fleet's breaker: each has its own, without Redis."""
        return bool(self.views) and all(local or effective == NO_DATA for effective, local in self.views)

    @property
    def why(self) -> str:
        """Why it is open or half-open, with the figures of the trip; empty while that is not known."""
        if self.alone and self.effective in NOT_CLOSED:
            pods = sum(n for (effective, _), n in self.views.items() if effective in NOT_CLOSED)
            return f"{pods} of {self.live} pods opened their own breaker, without Redis"
        if self.incident is None:
            return self._counted_why
        words = [trip_words(self.incident.trip)] if self.incident.trip is not None else []
        if self.incident.reopened:
            words.append(f"{count(self.incident.reopened, 'failed probe')} since")
        return "; ".join(words)

    @property
    def _counted_why(self) -> str:
        """Why it opened by what pods count, until its transition is collected, some seconds later."""
        limit = self.dependency.consecutive_failures
        if self.state != "open" or self.override is not None:
            return ""
        if limit and self.consecutive >= limit:
            return f"{self.consecutive} failures in a row, opens at {limit}"
        if self.calls >= self.dependency.minimum_calls and self.ratio >= self.threshold:
            percent = self.dependency.failure_percent
            return f"{self.failures} of {self.calls} calls failed, opens at {percent} %"
        return ""

    @property
    def divided(self) -> bool:
        """Some pod reports another state."""
        return any(seen_as not in (self.effective, NO_DATA) for seen_as, _ in self.views)

    @property
    def contradicting(self) -> tuple[str, ...]:
        """Live pods that let calls pass while the fleet's breaker refuses them, or the reverse.

        Those in a drill do so on purpose. Without a pod that uses Redis, no state is the fleet's.
        """
        if self.alone or self.effective == NO_DATA:
            return ()
        if not any(self._contradicts(seen_as) for seen_as, _ in self.views):
            return ()
        drill = {server.name for server in self.servers if server.mode == "drill"}
        return tuple(
            one.server for one in self.seen_by if self._contradicts(one.effective) and one.server not in drill
        )

    def _contradicts(self, seen_as: str) -> bool:
        return seen_as != NO_DATA and (seen_as in REFUSING) != (self.effective in REFUSING)

    @property
    def ratio(self) -> float:
        return self.failures / self.calls if self.calls else 0.0

    @property
    def threshold(self) -> float:
        return self.dependency.failure_percent / 100

    @property
    def near(self) -> bool:
        return self.effective == "closed" and self.calls >= NEAR_CALLS and self.ratio > self.threshold * NEAR

    @property
    def quiet(self) -> bool:
        """Nothing to look at: closed, or not reported."""
        return self.effective in ("closed", NO_DATA)


def breaker_statuses(facts: Facts) -> tuple[BreakerStatus, ...]:
    """Every dependency's breaker, worst first: by state, then by failures."""
    transitions: dict[str, list[Transition]] = defaultdict(list)
    for transition in facts.transitions:
        transitions[transition.dependency].append(transition)
    # 200 breakers of 1,000 pods are 200,000 views in each tick: each is touched as seldom as possible.
    seen: dict[str, list[BreakerSeen]] = defaultdict(list)
    for server in facts.live_servers:
        for name, view in server.breakers.items():
            seen[name].append(view)
    built = [
        _status(dependency, facts, seen[dependency.name], transitions[dependency.name])
        for dependency in facts.dependencies
    ]
    rank = WORST_FIRST.index
    return tuple(sorted(built, key=lambda b: (rank(b.effective), not b.near, -round(b.ratio, 1), b.name)))


def _status(
    dependency: Dependency, facts: Facts, seen: list[BreakerSeen], transitions: list[Transition]
) -> BreakerStatus:
    name, override = dependency.name, _in_force(dependency.override, facts.now)
    live = facts.live_servers
    fleet = _fleet_view(seen)
    effective = override.mode if override else fleet.state if fleet else NO_DATA
    # Without Redis, the transitions of the fleet do not explain what pods decide alone.
    incident = incident_of(transitions) if fleet and not fleet.local and fleet.state in NOT_CLOSED else None
    since = fleet.since if fleet else None
    if incident is not None:
        since = incident.since
    elif fleet is not None and fleet.state == "closed":
        since = closed_since(transitions)
    state = fleet.state if fleet else "closed"
    views = Counter([(_effective(view, state), view.local) for view in seen])
    if missing := len(live) - len(seen):
        views[NO_DATA, False] += missing
    return BreakerStatus(
        name=name,
        dependency=dependency,
        effective=effective,
        state=state,
        state_since=fleet.since if fleet else None,
        since=facts.overridden_since(name, override) if override else since,
        period_since=override.made_at if override else fleet.since if fleet else None,
        incident=incident,
        until=override.expires_at if override else fleet.until if fleet else None,
        calls=fleet.calls if fleet else 0,
        failures=fleet.failures if fleet else 0,
        consecutive=fleet.consecutive if fleet else 0,
        open_share=_open_share(fleet, transitions, facts.now),
        traffic=facts.figures.dependencies.get(name, DependencyFigures()),
        protected=facts.figures.protection.get(name),
        override=override,
        ends_soon=override is not None and _ends_soon(override, facts.now),
        views=views,
        servers=live,
        agree=sum(count for (seen_as, _), count in views.items() if seen_as == effective),
        live=len(live),
    )


def _open_share(fleet: BreakerSeen | None, transitions: list[Transition], now: float) -> float:
    state = fleet.state if fleet is not None else "closed"
    if transitions or fleet is None or state != "open":
        return open_ratio(transitions, state, now)
    # Its transition is not collected yet.
    return min(1.0, (now - fleet.since) / HOUR_S) if fleet.since is not None else 0.0


def _in_force(override: Override | None, now: float) -> Override | None:
    return override if override is not None and override.expires_at > now else None


def _ends_soon(override: Override, now: float) -> bool:
    return override.expires_at - now <= min(ENDS_SOON_S, (override.expires_at - override.made_at) / 2)


def _fleet_view(views: list[BreakerSeen]) -> BreakerSeen | None:
    """The newest generation is the fleet's. Without Redis there is none: then what most pods report."""
    shared = [view for view in views if not view.local]
    newest = max([view.generation for view in shared], default=0)
    alike = [view for view in shared if view.generation == newest]
    alone = [view for view in views if view.local and not _may_have_closed(view)]
    # Pods that call lose Redis first: what an idle one still believes must not outweigh what they decide.
    if alike and not (alone and all(map(_may_have_closed, alike))):
        return _from_first(alike, max(alike, key=attrgetter("calls")))
    deciding = alone or views
    common = Counter(view.state for view in deciding).most_common(1)
    alike = [view for view in deciding if view.state == common[0][0]] if common else []
    return _from_first(alike, alike[0]) if alike else None


def _may_have_closed(view: BreakerSeen) -> bool:
    """Its open time is over, and the pod has not called since: it refuses nothing, and asks when it calls."""
    return view.state == "open" and view.until is None and view.override is None


def _effective(view: BreakerSeen, fleet_state: str) -> str:
    """The override or state that a pod reports. An idle pod does not know that the breaker has changed."""
    if view.state != fleet_state and _may_have_closed(view):
        return NO_DATA
    return view.override or view.state


def _from_first(alike: list[BreakerSeen], view: BreakerSeen) -> BreakerSeen:
    """A pod that started since then knows the state for less time than the others."""
    return replace(view, since=min([one.since for one in alike if one.since is not None], default=None))


def _seen_by(server: Server, name: str, fleet_state: str) -> SeenBy:
    view = server.breakers.get(name)
    if view is None:
        return SeenBy(server=server.name, effective=NO_DATA, local=False)
    return SeenBy(server=server.name, effective=_effective(view, fleet_state), local=view.local)
