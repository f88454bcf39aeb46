"""Alerts by cause, as the overview and the page of alerts display them: what is true now, and what the worker
stored of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from controlplane.alerts.lifecycle import LONGEST_PAUSE_S, AlertState
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.rule import Finding, Subject, Timing, rule_of
from controlplane.alerts.rules.settings import settings_of
from controlplane.alerts.state.causes import by_cause
from controlplane.alerts.state.flapping import QUIET_S
from controlplane.alerts.state.stored_alerts import StoredAlert
from controlplane.status.facts import Facts
from dashboard.live.alerts import link_of

#: ``planned`` is no alert: a change that will be made.
LineState = Literal["firing", "pending", "recovering", "planned"]
_STATES: tuple[LineState, ...] = ("firing", "pending", "recovering", "planned")
#: Minutes for which the card offers to mute an alert. One of level 3 can be muted for an hour at most.
_MUTES = ((30, "30 min"), (60, "1 h"), (240, "4 h"))
_LONGEST_OF_LEVEL_3 = 60
#: Cards on the overview, and live ones on the page of alerts: a tick sends them as one part.
MAX_ALERT_CARDS = 10
MAX_LIVE_CARDS = 20
#: Further cards on a page of the alerts that are not live.
CARDS_OF_PAGE = 50


@dataclass(frozen=True, kw_only=True)
class AlertLine:
    """One alert."""

    environment: str
    key: str
    state: LineState
    severity: str
    level: int
    #: No other line has this name.
    name: str
    detail: str
    runbook: str
    subject: Subject
    pods: tuple[str, ...]
    #: Since when it is true, whatever its severity was since.
    since: float
    #: When it fires if it stays true, or is resolved if it stays away.
    changes_at: float | None
    #: ``None`` until the worker has evaluated it.
    stored: StoredAlert | None

    @property
    def number(self) -> int | None:
        return self.stored.id if self.stored is not None else None

    @property
    def anchor(self) -> str:
        """The id of its element. It has none before it has a number: a key may contain any name."""
        return f"alert-{self.number}" if self.number is not None else ""

    @property
    def critical_since(self) -> float | None:
        """When it became critical, if it was a warning before."""
        stored = self.stored if self.severity == "critical" else None
        return stored.critical_since if stored is not None else None

    @property
    def link(self) -> str:
        return link_of(self.subject)

    @property
    def css(self) -> str:
        if self.state in ("recovering", "planned"):
            return "st-half" if self.state == "recovering" else "st-warn"
        return "st-open" if self.severity == "critical" else "st-warn"

    @property
    def glyph(self) -> str:
        return "crit" if self.severity == "critical" else "warn"

    @property
    def dependency(self) -> str:
        return self.subject.name if self.subject.kind == "breaker" else ""

    @property
    def incident(self) -> int | None:
        return self.stored.incident if self.stored is not None else None

    @property
    def fired(self) -> bool:
        """A person can acknowledge it."""
        return self.stored is not None and self.stored.fired

    @property
    def below(self) -> bool:
        """Its figure was above a threshold, and is not any more."""
        rule = RULE_OF_KEY.get(rule_of(self.key))
        return rule is not None and rule.value is not None and rule.threshold.compare != "less than"

    @property
    def mutes(self) -> tuple[tuple[int, str], ...]:
        """The minutes of mutes to offer. What is only planned is no news, so nothing can be muted."""
        if self.state == "planned" or self.stored is None or self.stored.muted is not None:
            return ()
        return tuple(one for one in _MUTES if self.level < 3 or one[0] <= _LONGEST_OF_LEVEL_3)

    @property
    def mutes_rule(self) -> bool:
        """A mute of it hides every alert of its rule: mutes know dependencies and pods, and no tenants."""
        return ":" in self.key and self.subject.kind != "breaker" and len(self.pods) != 1

    # ``controlplane.alerts.state.causes`` reads these.

    @property
    def subject_name(self) -> str:
        return self.subject.name

    @property
    def true_since(self) -> datetime:
        return datetime.fromtimestamp(self.since, UTC)


@dataclass(frozen=True, kw_only=True)
class AlertCard:
    """A cause, and the alerts that follow from it."""

    alert: AlertLine
    follow: tuple[AlertLine, ...]

    @property
    def anchor(self) -> str:
        return f"{self.alert.anchor}-follow" if self.alert.anchor else ""

    @property
    def follow_words(self) -> str:
        """``3 more follow from it: 2 firing, 1 pending``: folded alerts are in the count of the page, too."""
        follows = "follows" if len(self.follow) == 1 else "follow"
        return f"{len(self.follow)} more {follows} from it: {_counts(self.follow)}"


@dataclass(frozen=True, kw_only=True)
class AlertCards:
    """Every alert that is not resolved, by cause; the worst first."""

    lines: tuple[AlertLine, ...]

    @cached_property
    def cards(self) -> tuple[AlertCard, ...]:
        return tuple(AlertCard(alert=one, follow=follow) for one, follow in by_cause(self.lines))

    @property
    def first(self) -> tuple[AlertCard, ...]:
        """The overview has these. A tick sends them as one part, so that their number is bounded."""
        return self.cards[:MAX_ALERT_CARDS]

    @property
    def live(self) -> tuple[AlertCard, ...]:
        """The page of alerts sends these again when they change. It displays others as it was loaded."""
        return self.cards[:MAX_LIVE_CARDS]

    @property
    def not_live(self) -> tuple[AlertCard, ...]:
        return self.cards[MAX_LIVE_CARDS:]

    @property
    def others(self) -> int:
        """Alerts of the cards that the overview leaves out."""
        return sum(1 + len(card.follow) for card in self.cards[MAX_ALERT_CARDS:])

    @cached_property
    def following(self) -> frozenset[str]:
        """Keys of alerts that follow from another one."""
        return frozenset(one.key for card in self.cards for one in card.follow)

    @property
    def firing(self) -> int:
        return sum(one.state == "firing" for one in self.lines)

    @property
    def firing_css(self) -> str:
        """The class of the worst that fires."""
        return next((one.css for one in self.lines if one.state == "firing"), "")

    @property
    def incidents(self) -> int:
        """Active ones: open, with an alert that is true."""
        return len({one.incident for one in self._of_incidents})

    @property
    def incidents_css(self) -> str:
        """The class of the worst of them."""
        return max((one.css for one in self._of_incidents), default="", key=lambda css: css == "st-open")

    @property
    def _of_incidents(self) -> list[AlertLine]:
        true = (AlertState.PENDING, AlertState.FIRING)
        return [
            line
            for line in self.lines
            if (one := line.stored) is not None
            and one.incident is not None
            and not one.incident_closed
            and one.state in true
        ]

    @property
    def counts(self) -> str:
        """``4 firing, 2 pending``."""
        return _counts(self.lines) or "none"


def _counts(lines: Iterable[AlertLine]) -> str:
    tally = Counter(one.state for one in lines)
    return ", ".join(f"{tally[state]} {state}" for state in _STATES if tally[state])


def alert_cards(facts: Facts, found: Iterable[Finding], stored: Mapping[str, StoredAlert]) -> AlertCards:
    """``found``: what is true now. ``stored``: what the worker knows, also of what is not true any more."""
    findings = {one.key: one for one in found}
    lines = [
        line
        for key in findings.keys() | stored.keys()
        if (line := _line(facts, key, findings.get(key), stored.get(key))) is not None
    ]
    lines.sort(key=_place)
    return AlertCards(lines=tuple(_with_names(lines)))


def _place(line: AlertLine) -> tuple[bool, bool, int, float, str]:
    state = _STATES.index(line.state)
    return (line.state == "planned", line.severity != "critical", state, -line.since, line.key)


def _line(facts: Facts, key: str, finding: Finding | None, stored: StoredAlert | None) -> AlertLine | None:
    timing = settings_of(facts.alert_rules, key).timing
    if finding is None:
        return None if stored is None else line_of_stored(facts.environment, stored, timing)
    since = finding.since if finding.since is not None else facts.now
    if stored is not None and (stored.severity == "critical" or finding.severity == "warning"):
        # A warning does not bring nearer the moment at which a critical alert fires.
        since = stored.level_since
    wait_s = max(timing.fires_after_s, finding.lasting_s)
    fires_at = since + wait_s
    state = _state(facts, finding, stored, fires_at if wait_s else None)
    return AlertLine(
        environment=facts.environment,
        key=key,
        state=state,
        severity=finding.severity,
        level=timing.level,
        name=finding.text,
        detail=finding.detail,
        runbook=finding.runbook,
        subject=finding.subject,
        pods=finding.pods,
        # The pages of the alert and of its incident date it alike. Its episode may be older than its cause.
        since=stored.true_since if stored is not None else since,
        changes_at=fires_at if state == "pending" else None,
        stored=stored,
    )


def line_of_stored(environment: str, stored: StoredAlert, timing: Timing) -> AlertLine:
    """An alert as Postgres knows it, whether or not its condition is true now."""
    state: LineState = "firing"
    changes_at = None
    if stored.state == AlertState.RECOVERING and stored.clear_since is not None:
        # An alert that flaps is resolved later, see ``timing_while``.
        clears_s = max(timing.resolves_after_s, QUIET_S if stored.flapping_since else 0.0)
        state, changes_at = "recovering", stored.clear_since + clears_s
    elif stored.state == AlertState.PENDING:
        state, changes_at = "pending", stored.level_since + timing.fires_after_s
    return AlertLine(
        environment=environment,
        key=stored.key,
        state=state,
        severity=stored.severity,
        level=stored.level,
        name=stored.words,
        detail=stored.detail,
        runbook=stored.runbook,
        subject=stored.subject,
        pods=stored.pods,
        since=stored.true_since,
        changes_at=changes_at,
        stored=stored,
    )


def _state(facts: Facts, finding: Finding, stored: StoredAlert | None, fires_at: float | None) -> LineState:
    rule = RULE_OF_KEY.get(rule_of(finding.key))
    if rule is not None and not rule.alerts:
        return "planned"
    if fires_at is None or (stored is not None and stored.fired):
        return "firing"
    evaluated = facts.evaluated_at is not None and facts.now - facts.evaluated_at <= LONGEST_PAUSE_S
    # While no worker evaluates, it fires by its time.
    return "pending" if evaluated or facts.now < fires_at else "firing"


def _what_differs(line: AlertLine) -> str:
    return line.key.partition(":")[2] or ", ".join(line.pods[:3])


def _with_names(lines: list[AlertLine]) -> Iterable[AlertLine]:
    """Two alerts with the same words get what differs: the thing, the pods, or the rule."""
    same = Counter(line.name for line in lines)
    same_thing = Counter((line.name, _what_differs(line)) for line in lines)
    for line in lines:
        if same[line.name] == 1:
            yield line
            continue
        thing = _what_differs(line)
        if not thing or same_thing[line.name, thing] > 1:
            thing = f"rule {rule_of(line.key)}, level {line.level}"
        yield replace(line, name=f"{line.name} ({thing})")
