"""The content of the page of one pod: who it is, and breakers and shares as it sees them."""

from dataclasses import dataclass
from datetime import timedelta

from django.db import InterfaceError, OperationalError

from controlplane.accounts.models import AgentToken
from controlplane.status.facts import BreakerSeen, Server
from controlplane.status.servers import server_status, unhealthy_at
from dashboard.live.breaker_looks import FACES, BreakerLook
from dashboard.live.overview import Live
from dashboard.live.servers import ServerRow, row_of

#: Breakers that are listed: those that differ up to the first number, then others up to the second.
MAX_DIFFERING = 100
MAX_LIKE_THE_FLEET = 50
#: A token that expires within this time is marked.
ENDS_SOON = timedelta(days=14)


@dataclass(frozen=True, kw_only=True)
class BreakerOnPod:
    name: str
    face: BreakerLook
    #: ``None`` for a dependency that the configuration does not have any more.
    fleet: BreakerLook | None
    since: float | None
    #: When an open breaker may probe.
    until: float | None
    #: Decided by this pod alone.
    local: bool
    calls: int
    failures: int

    @property
    def differs(self) -> bool:
        if self.local or self.fleet is None:
            return self.local
        # "Closed" is what a pod says of a breaker that no pod has used yet.
        return self.face != self.fleet and (self.face.kind, self.fleet.kind) != ("closed", "stale")


@dataclass(frozen=True, kw_only=True)
class BreakersOnPod:
    rows: tuple[BreakerOnPod, ...] = ()
    differing: int = 0
    #: Reported, and not listed.
    more: int = 0


@dataclass(frozen=True, kw_only=True)
class PodPage:
    row: ServerRow
    breakers: BreakersOnPod
    #: ``None`` if the token was deleted, or while Postgres is unavailable.
    token: AgentToken | None
    #: One of ``works``, ``soon``, ``expired`` and ``revoked``; empty without a token.
    token_state: str
    #: When the oldest revision was made that it has not applied; ``None`` if it has all.
    behind_since: float | None
    #: The newest revision.
    revision: int

    @property
    def server(self) -> Server:
        return self.row.server

    @property
    def behind(self) -> bool:
        return self.row.server.live and self.server.revision < self.revision

    @property
    def ahead(self) -> bool:
        return self.server.revision > self.revision


def pod_page(live: Live, name: str) -> PodPage | None:
    """``None`` for a pod that is not displayed any more, or never was."""
    row = next((row for row in live.fleet.rows if row.name == name), None)
    return None if row is None else _page(live, row)


def page_of_old_pod(live: Live, server: Server) -> PodPage:
    """The page of a pod that left a while ago: it is in no list any more, but its row is still there."""
    facts = live.facts
    return _page(
        live,
        row_of(
            server_status(server, facts, unhealthy_at(facts.alert_rules)), facts, live.fleet, live.breakers
        ),
    )


def _page(live: Live, row: ServerRow) -> PodPage:
    server, facts = row.server, live.facts
    token = _token(server.token)
    return PodPage(
        row=row,
        breakers=breakers_on_pod(live, server),
        token=token,
        token_state="" if token is None else _state_at(token, facts.now),
        behind_since=facts.behind_since(server),
        revision=facts.revision,
    )


def breakers_on_pod(live: Live, server: Server) -> BreakersOnPod:
    """The breakers of a pod, those that differ from the fleet first."""
    fleet = {breaker.name: breaker.face for breaker in live.breakers}
    every = [_breaker(name, seen, fleet.get(name)) for name, seen in server.breakers.items()]
    every.sort(key=lambda row: (not row.differs, row.name))
    differing = sum(row.differs for row in every)
    shown = every[: min(differing, MAX_DIFFERING) + MAX_LIKE_THE_FLEET]
    return BreakersOnPod(rows=tuple(shown), differing=differing, more=len(every) - len(shown))


def _breaker(name: str, seen: BreakerSeen, fleet: BreakerLook | None) -> BreakerOnPod:
    return BreakerOnPod(
        name=name,
        face=FACES[seen.override or seen.state],
        fleet=fleet,
        since=seen.since,
        until=seen.until if seen.state == "open" and seen.override is None else None,
        local=seen.local,
        calls=seen.calls,
        failures=seen.failures,
    )


def _token(selector: str) -> AgentToken | None:
    if not selector:
        return None
    try:
        return AgentToken.objects.filter(selector=selector).first()
    except (OperationalError, InterfaceError):
        return None


def _state_at(token: AgentToken, now: float) -> str:
    if token.revoked_at is not None and token.revoked_at.timestamp() <= now:
        return "revoked"
    left = token.expires_at.timestamp() - now
    return "expired" if left <= 0 else "soon" if left < ENDS_SOON.total_seconds() else "works"
