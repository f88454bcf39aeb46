"""How often a rule would have fired: stored figures of the fleet, put through the states of an alert."""

from datetime import timedelta

from django.utils import timezone

from controlplane.alerts.lifecycle import AlertEvent, AlertProgress, AlertState, advance
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.rule import Finding, Subject
from controlplane.alerts.rules.settings import RuleSettings
from controlplane.series.kinds import FLEET
from controlplane.series.reading import read

#: Minutes of this time are read.
HISTORY_H = 24


def times_fired(environment: str, rule: str, settings: RuleSettings, deadline_us: int) -> int | None:
    """How many alerts would have fired in the last ``HISTORY_H`` hours; ``None`` if no figure is stored.

    Minutes without figures count neither for an alert nor against it.
    """
    figure = RULE_OF_KEY[rule].history
    if figure is None:
        return None
    now = timezone.now()
    answer = read(
        environment, FLEET, fields=figure.fields, start=now - timedelta(hours=HISTORY_H), end=now, now=now
    )
    if not settings.enabled:
        return 0
    known: AlertProgress | None = None
    fired = 0
    columns = [answer.fields[name] for name in figure.fields]
    for place, known_s in enumerate(answer.known_s):
        values = [column[place] for column in columns]
        blind = not known_s or None in values
        value = 0.0 if blind else figure.value([value or 0 for value in values], known_s, deadline_us)
        at = float(answer.start + place * answer.step_s)
        known, news = advance(
            known,
            None if blind else _found(settings, value, known),
            settings.timing,
            at,
            blind=blind,
            passed_s=float(answer.step_s) if blind else 0.0,
        )
        fired += news is AlertEvent.FIRED
        if news is AlertEvent.RESOLVED:
            known = None
    return fired


def _found(settings: RuleSettings, value: float, known: AlertProgress | None) -> Finding | None:
    firing = known.severity if known is not None and known.state is AlertState.FIRING else None
    severity = settings.passed(value, firing)
    if severity is None:
        return None
    subject = Subject(kind="servers")
    return Finding(key="", severity=severity, text="", detail="", runbook="", subject=subject)
