"""The live view while Postgres is away: what it last told, with servers as gateways hear them now."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import redis

from controlplane.breakers import override_in_redis
from controlplane.fleet import status_client
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Override, Server

#: Servers confirm a hold within a few beats; one that none confirms after so long is in force no more.
CONFIRMED_S = 15.0
#: Who made a hold is written in a journal that Postgres has not read yet.
SOMEBODY = "somebody"
UNTOLD = "made while Postgres is away; who and why is in the audit when it is back"


def without_postgres(known: Facts, *, fresh: bool = False) -> Facts:
    """What was known, as of now. Blocking, for as long as a gateway may take to answer."""
    told = status_client.ask(known.environment, fresh=fresh)
    notes = _notes(known.environment) | told.holds
    now = time.time()
    if not told.answered:
        return replace(known, now=now, told_by=0)
    servers = [_confirmed(server_of(row), notes) for row in told.servers.values()]
    live = [server for server in servers if server.live]
    # Who is heard by a gateway that did not answer may be well: shown as last known, not as fact.
    servers += [_unheard(server) for server in known.servers if server.name not in told.servers]
    return replace(
        known,
        now=now,
        told_by=told.answered,
        servers=tuple(sorted(servers, key=lambda server: server.name)),
        figures=told.figures,
        dependencies=tuple(
            replace(dependency, override=_held(dependency, live, notes.get(dependency.name), now))
            for dependency in known.dependencies
        ),
    )


def confirming(facts: Facts, name: str) -> tuple[int, int]:
    """How many live servers refuse calls to this dependency, and how many are live."""
    views = [server.breakers.get(name) for server in facts.live_servers]
    return sum(view is not None and _refuses(view) for view in views), len(views)


def server_of(row: dict[str, Any]) -> Server:
    """A server as its row says, as Postgres keeps it and gateways tell it."""
    return Server(
        name=row["name"],
        service=row["service"],
        zone=row["zone"],
        version=row["agent_version"],
        state=row["state"],
        mode=row["mode"],
        mode_since=row["mode_since"],
        mode_cause=row["mode_cause"],
        epoch=row["epoch"],
        revision=row["revision"],
        config_status=row["config_status"],
        config_error=row["config_error"],
        config_source=row["config_source"],
        started_at=row["started_at"],
        last_seen=row["last_seen_at"],
        calls_per_s=row["calls_per_s"],
        redis_p99_us=row["redis_p99_us"],
        breakers={view["dependency"]: seen_of(view) for view in row["breakers"]},
    )


def seen_of(view: dict[str, Any]) -> BreakerSeen:
    return BreakerSeen(
        state=view["state"],
        generation=view.get("generation") or 0,
        since=view.get("since"),
        until=view.get("until"),
        override=view.get("override"),
        local=bool(view.get("local")),
        calls=view.get("window_calls") or 0,
        failures=view.get("window_failures") or 0,
        consecutive=view.get("consecutive_failures") or 0,
    )


#: After Redis did not answer, its notes are not asked for again before; and what it said last.
_DOUBT_S = 5.0
_asked: dict[str, tuple[float, Mapping[str, Any]]] = {}


def _notes(environment: str) -> dict[str, Any]:
    """Who did what through Redis alone, as far as it tells; this page must not need it."""
    until, notes = _asked.get(environment, (0.0, {}))
    if time.monotonic() >= until:
        try:
            notes = override_in_redis.noted(environment)
        except redis.RedisError:
            _asked[environment] = time.monotonic() + _DOUBT_S, notes
    return dict(notes)


def _confirmed(server: Server, notes: Mapping[str, Any]) -> Server:
    """With holds through Redis alone named what they are, for those this server heeds."""
    held = {
        name: replace(view, override="forced_open")
        for name, view in server.breakers.items()
        if notes.get(name, {}).get("what") == "forced_open" and _refuses(view)
    }
    return replace(server, breakers=server.breakers | held) if held else server


def _unheard(server: Server) -> Server:
    return replace(server, state="unknown") if server.live else server


def _refuses(view: BreakerSeen) -> bool:
    """A hold in Redis alone looks to a server like a breaker that is open for as long."""
    if view.override is not None:
        return view.override == "forced_open"
    return view.state == "open" and view.until is not None


def _held(
    dependency: Dependency, live: Sequence[Server], note: Mapping[str, Any] | None, now: float
) -> Override | None:
    """The hold in force: what was noted since Postgres went away, else what servers confirm."""
    known = dependency.override
    if note is not None:
        noted_at, ends_at = int(str(note["id"]).partition("-")[0]) / 1000, note["expires_at_us"] / 1_000_000
        if note.get("what") == "reset":
            known = None if known is not None and known.made_at < noted_at else known
        elif ends_at > now:
            revision = known.revision if known is not None else 0
            return Override(
                mode="forced_open",
                reason=note["reason"],
                actor=note["actor"],
                expires_at=ends_at,
                made_at=noted_at,
                revision=revision,
            )
    views = [server.breakers[dependency.name] for server in live if dependency.name in server.breakers]
    held = [view for view in views if view.override is not None]
    if not held:
        recent = known is not None and (not views or now - known.made_at < CONFIRMED_S)
        return known if recent else None
    mode = Counter(str(view.override) for view in held).most_common(1)[0][0]
    if known is not None and known.mode == mode and known.expires_at > now:
        return known
    of_it = [view for view in held if view.override == mode]
    return Override(
        mode=mode,
        reason=UNTOLD,
        actor=SOMEBODY,
        expires_at=max((view.until or 0.0 for view in of_it), default=0.0) or now + CONFIRMED_S,
        made_at=min((view.since for view in of_it if view.since is not None), default=now),
        revision=0,
    )
