"""The status while Postgres is unavailable: what was last known, with pods as gateways hear them now.

Overrides of that time are not in Postgres yet. Who made one, and why, is in a note: in Redis, or in
the memory of gateways when Redis is down as well.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import redis
from msgspec import structs

from controlplane.breakers import override_in_redis
from controlplane.fleet.status_client import StatusClient
from controlplane.same_fields import made_from
from controlplane.status.facts import BreakerSeen, Dependency, Facts, Override, Server
from controlplane.status.server_rows import server_of_report

#: Pods confirm an override within a few heartbeats. One that none confirms for this long has ended.
CONFIRMED_S = 15.0
#: After Redis did not answer, its notes are not read again for this long.
RETRY_NOTES_S = 5.0
#: After Postgres is back, gateways record what they hold within a few seconds. A gateway that restarted has
#: lost it.
RECORDED_S = 60.0
#: Shown for an override that pods report and no note explains.
UNKNOWN_ACTOR = "unknown operator"
UNKNOWN_REASON = "made while Postgres is unavailable; the audit will say who and why when it is back"


@dataclass(frozen=True, kw_only=True)
class Note:
    """An action of an operator on a breaker without Postgres."""

    what: Literal["forced_open", "reset"]
    #: In Redis alone: pods then see an open breaker, not an override.
    in_redis: bool
    reason: str
    actor: str
    made_at: float
    expires_at: float
    ticket: str = ""


class WithoutPostgres:
    """Reads the status without Postgres. One per process: it remembers the last answers."""

    def __init__(self) -> None:
        self.gateways = StatusClient()
        self._notes: dict[str, dict[str, Note]] = {}
        self._retry_notes_at = 0.0
        #: Until Postgres has recorded them, so that an override does not look like a trip meanwhile; and
        #: when Postgres was last unavailable.
        self._unrecorded: dict[str, dict[str, Note]] = {}
        self._away_at = 0.0

    def facts(self, known: Facts, *, fresh: bool = False) -> Facts:
        """``known``, brought up to date. Blocks for as long as a gateway may take to answer.

        ``fresh``: ask the gateways now, however recent their last answer is.
        """
        reported = self.gateways.ask(known.environment, fresh=fresh)
        in_gateways = {name: _note(one, in_redis=False) for name, one in reported.overrides.items()}
        notes = self._notes_in_redis(known) | in_gateways
        now = self._away_at = time.time()
        self._unrecorded[known.environment] = notes
        if not reported.answered:
            return replace(_with_notes(known, notes, now), now=now, gateways_reporting=0)
        servers = [_naming_overrides(server_of_report(row), notes) for row in reported.servers.values()]
        live = [server for server in servers if server.live]
        # A pod of a gateway that did not answer may be well: it is displayed as last known, not as fact.
        servers += [_unheard(server) for server in known.servers if server.name not in reported.servers]
        return replace(
            known,
            now=now,
            gateways_reporting=reported.answered,
            servers=tuple(sorted(servers, key=lambda server: server.name)),
            figures=reported.figures,
            figures_at=now,
            dependencies=tuple(
                replace(dependency, override=_override(dependency, live, notes.get(dependency.name), now))
                for dependency in known.dependencies
            ),
        )

    def until_recorded(self, found: Facts) -> Facts:
        """``found``, which Postgres has answered again, with overrides that it has not recorded yet."""
        unrecorded = self._unrecorded.get(found.environment)
        if not unrecorded:
            return found
        in_redis: Mapping[str, Any] = unrecorded
        # While Redis is down, Postgres cannot record what is noted there.
        with suppress(redis.RedisError):
            in_redis = override_in_redis.noted(found.environment)
        waiting = {
            name: note
            for name, note in unrecorded.items()
            if note.expires_at > found.now
            and (name in in_redis if note.in_redis else found.now - self._away_at < RECORDED_S)
            and not _recorded(found.dependency(name), note)
        }
        self._unrecorded[found.environment] = waiting
        return _with_notes(found, waiting, found.now)

    def _notes_in_redis(self, known: Facts) -> dict[str, Note]:
        """By dependency, as far as Redis answers: this status must not need it."""
        if time.monotonic() >= self._retry_notes_at:
            try:
                found = override_in_redis.noted(known.environment)
            except redis.RedisError:
                self._retry_notes_at = time.monotonic() + RETRY_NOTES_S
            else:
                notes = {name: _note(one, in_redis=True) for name, one in found.items()}
                self._notes[known.environment] = notes
                return notes
        remembered = self._notes.get(known.environment, {})
        # Postgres has been read since an older note was made, so an operator may have ended its override.
        return {name: note for name, note in remembered.items() if note.made_at > known.as_of}


def confirming(facts: Facts, name: str) -> tuple[int, int]:
    """How many live pods refuse calls to this dependency, and how many are live."""
    views = [server.breakers.get(name) for server in facts.live_servers]
    return sum(view is not None and _refuses(view) for view in views), len(views)


def _note(fields: Mapping[str, Any], *, in_redis: bool) -> Note:
    return Note(
        what="reset" if fields.get("what") == "reset" else "forced_open",
        in_redis=in_redis,
        reason=fields["reason"],
        actor=fields["actor"],
        # An id begins with the milliseconds at which the note was made.
        made_at=int(str(fields["id"]).partition("-")[0]) / 1000,
        expires_at=fields["expires_at_us"] / 1_000_000,
        ticket=fields.get("ticket", ""),
    )


def _recorded(dependency: Dependency | None, note: Note) -> bool:
    """Whether Postgres has it: the override is there, or the one that was reset is not."""
    override = dependency.override if dependency is not None else None
    if note.what == "reset":
        return override is None or override.made_at >= note.made_at
    return override is not None and override.expires_at >= note.expires_at - 1


def _with_notes(facts: Facts, notes: Mapping[str, Note], now: float) -> Facts:
    """Actions of operators without Postgres, over the last state in Postgres."""
    if not notes:
        return facts
    return replace(
        facts,
        servers=tuple(_naming_overrides(server, notes) for server in facts.servers),
        dependencies=tuple(
            replace(dependency, override=_by_note(dependency, notes.get(dependency.name), now))
            for dependency in facts.dependencies
        ),
    )


def _by_note(dependency: Dependency, note: Note | None, now: float) -> Override | None:
    known = _not_reset(dependency.override, note)
    return from_note(note, known, now) or known


def _naming_overrides(server: Server, notes: Mapping[str, Note]) -> Server:
    """With overrides in Redis alone named as such, where this pod applies them."""
    forced = {
        name: replace(view, override="forced_open")
        for name, view in server.breakers.items()
        if (note := notes.get(name)) and note.in_redis and note.what == "forced_open" and _refuses(view)
    }
    return structs.replace(server, breakers=server.breakers | forced) if forced else server


def _unheard(server: Server) -> Server:
    return structs.replace(server, state="unknown") if server.live else server


def _refuses(view: BreakerSeen) -> bool:
    """To a pod, an override in Redis alone looks like a breaker that is open until the same time."""
    if view.override is not None:
        return view.override == "forced_open"
    return view.state == "open" and view.until is not None


def _override(
    dependency: Dependency, live: Sequence[Server], note: Note | None, now: float
) -> Override | None:
    """The override in force. There are three sources; the first that knows one decides."""
    known = _not_reset(dependency.override, note)
    views = [server.breakers[dependency.name] for server in live if dependency.name in server.breakers]
    return from_note(note, known, now) or from_servers(views, known, now) or last_known(views, known, now)


def _not_reset(known: Override | None, note: Note | None) -> Override | None:
    """The override in Postgres, unless the note says that it was reset since."""
    if known is not None and note is not None and note.what == "reset" and known.made_at < note.made_at:
        return None
    return known


def from_note(note: Note | None, known: Override | None, now: float) -> Override | None:
    """The action of an operator since Postgres became unavailable."""
    if note is None or note.what != "forced_open" or note.expires_at <= now:
        return None
    revision = known.revision if known is not None else 0
    return made_from(Override, note, mode="forced_open", revision=revision, ended_by="")


def from_servers(views: Sequence[BreakerSeen], known: Override | None, now: float) -> Override | None:
    """The override that most live pods apply; its author and reason are known only from Postgres."""
    modes = Counter(view.override for view in views if view.override is not None)
    if not modes:
        return None
    mode = modes.most_common(1)[0][0]
    if known is not None and known.mode == mode and known.expires_at > now:
        return known
    applied = [view for view in views if view.override == mode]
    return Override(
        mode=mode,
        reason=UNKNOWN_REASON,
        actor=UNKNOWN_ACTOR,
        expires_at=max(view.until or 0.0 for view in applied) or now + CONFIRMED_S,
        made_at=min((view.since for view in applied if view.since is not None), default=now),
        revision=0,
    )


def last_known(views: Sequence[BreakerSeen], known: Override | None, now: float) -> Override | None:
    """The override in Postgres, while no pod reports the breaker or it is too recent to be confirmed."""
    if known is not None and (not views or now - known.made_at < CONFIRMED_S):
        return known
    return None
