"""The content of the page of one breaker: how calls failed, what each pod sees, and its past."""

from dataclasses import dataclass, replace

from django.db import InterfaceError, OperationalError
from django.utils.safestring import SafeString

from controlplane.audit.actor import FUSEBOARD
from controlplane.fleet.failed_calls import FailuresSeen, recent_failures
from controlplane.status.facts import Transition
from dashboard.live.breaker_looks import FACES
from dashboard.live.breakers import Breaker, PodView
from dashboard.live.overview import Live
from dashboard.live.pod_lines import PodLine, own_lines
from dashboard.live.timeline import RANGES, lanes, segments_of

#: Pods that are listed, however many there are: those that differ first.
MAX_DIFFERING = 40
MAX_AGREEING = 24
#: Transitions of the fleet's breaker that are listed, and lines about those of pods.
MAX_TRANSITIONS = 30
MAX_OWN = 12


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The states that pods see. In a large fleet only those that differ are named."""

    #: See another state than the fleet, or decide alone.
    differing: tuple[PodView, ...] = ()
    more_differing: int = 0
    agreeing: tuple[PodView, ...] = ()
    more_agreeing: int = 0

    @property
    def listed(self) -> tuple[PodView, ...]:
        return self.differing + self.agreeing


def agreement_of(breaker: Breaker | None) -> Agreement:
    seen = breaker.seen if breaker is not None else ()
    differing = [view for view in seen if breaker is not None and (view.face != breaker.face or view.local)]
    agreeing = [view for view in seen if breaker is not None and view.face == breaker.face and not view.local]
    few = agreeing if len(agreeing) <= MAX_AGREEING else []
    return Agreement(
        differing=tuple(differing[:MAX_DIFFERING]),
        more_differing=max(0, len(differing) - MAX_DIFFERING),
        agreeing=tuple(few),
        more_agreeing=len(agreeing) - len(few),
    )


def failures_of(live: Live, name: str) -> FailuresSeen | None:
    """``None`` while Postgres, which has them, is unavailable: the rest of the page stays."""
    try:
        return recent_failures(live.facts.environment, name, live.facts.now)
    except (OperationalError, InterfaceError):
        return None


@dataclass(frozen=True, kw_only=True)
class BreakerHistory:
    picture: SafeString
    #: The breaker that all pods share changed its state, newest first. ``before`` and ``after`` are keys
    #: of ``FACES``.
    transitions: tuple[Transition, ...]
    #: Lines about the own breakers of pods.
    own: tuple[PodLine, ...]


def past(live: Live, name: str, span: str) -> BreakerHistory | None:
    breaker = live.breaker(name)
    if breaker is None:
        return None
    own = [transition for transition in live.facts.transitions if transition.dependency == name]
    # To the next part of a minute, so that the picture is not sent again every second.
    step = 10 if span == "15m" else 60
    end = live.facts.now // step * step + step
    start = end - RANGES[span]
    overrides = [override for override in live.facts.overrides(name) if override.expires_at > start]
    found = segments_of(breaker, live.facts, start, end)
    changes = [c for c in live.facts.changes if c.at > start and c.revision is not None and c.target == name]
    return BreakerHistory(
        picture=lanes(found, overrides, changes[:6], start, end),
        transitions=tuple(_with_reasons(live, _explained(live, own[:MAX_TRANSITIONS]))),
        own=tuple(own_lines(live.facts.pod_events, name)[:MAX_OWN]),
    )


def _explained(live: Live, moves: list[Transition]) -> list[Transition]:
    """Transitions in the words of overrides: "forced open", not "open", and the end by its cause."""
    found = []
    for place, move in enumerate(moves):
        older = moves[place + 1] if place + 1 < len(moves) else None
        forced = older is not None and older.cause in FACES and older.after == move.before
        shown = replace(
            move,
            before=older.cause if older is not None and forced else move.before,
            after=move.cause if move.cause in FACES else move.after,
        )
        if older is not None and forced and not move.actor:
            shown = _end_of_override(live, shown, since=older.at)
        elif forced and shown.before == shown.after:
            shown = replace(shown, cause="extended")
        found.append(shown)
    return found


def _end_of_override(live: Live, move: Transition, *, since: float) -> Transition:
    """The first transition after an override: with the operator who ended it, or because it expired.

    Only the newest changes are known, with the reason of the operator. Of an older one, the override still
    has who ended it.
    """
    ended = next(
        (
            change
            for change in live.facts.changes
            if change.action == "breaker.released"
            and change.target == move.dependency
            and since <= change.at <= move.at + 2
        ),
        None,
    )
    if ended is not None:
        return replace(move, cause="override_ended", actor=ended.actor, reason=ended.reason)
    overrides = live.facts.overrides(move.dependency)
    over = next((one for one in overrides if one.made_at <= move.at), None)
    if over is not None and over.ended_by == FUSEBOARD.name:
        return replace(move, cause="expired")
    # Until a worker notes its end, an override that has expired is as if in force.
    if over is None or over.expires_at > move.at + 2:
        return replace(move, cause="override_over")
    if not over.ended_by:
        return replace(move, cause="expired")
    return replace(move, cause="override_ended", actor=over.ended_by)


def _with_reasons(live: Live, transitions: list[Transition]) -> list[Transition]:
    """Add to a person's transition the reason of their change just before it."""
    reasoned = []
    for transition in transitions:
        if transition.reason:
            reasoned.append(transition)
            continue
        reason = next(
            (
                change.reason
                for change in live.facts.changes
                if transition.actor
                and change.actor == transition.actor
                and change.target == transition.dependency
                and -2 < transition.at - change.at < 10
            ),
            "",
        )
        reasoned.append(replace(transition, reason=reason))
    return reasoned
