"""Stored alerts, for pages and the API."""

from dataclasses import dataclass, replace
from typing import cast

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert, Evaluation, Muted
from controlplane.alerts.rules.rule import Subject, SubjectKind
from controlplane.alerts.rules.texts import past
from controlplane.alerts.state.mutes import mute_of, not_ended
from controlplane.same_fields import made_from
from controlplane.status.facts import Facts

_MOMENTS = (
    *("true_since", "level_since", "fired_at", "clear_since", "resolved_at", "blind_since", "idle_since"),
    *("acknowledged_at", "flapping_since"),
)


@dataclass(frozen=True, kw_only=True)
class StoredAlert:
    """An alert as Postgres knows it. Moments are unix seconds."""

    id: int
    key: str
    state: AlertState
    severity: str
    level: int
    text: str
    #: Its text when it reached its worst severity; empty for an alert of an earlier release.
    worst_text: str = ""
    detail: str
    runbook: str
    subject: Subject
    true_since: float
    #: Since when its condition is true at this severity or a worse one.
    level_since: float
    fired_at: float | None = None
    #: Since when its condition is not true any more.
    clear_since: float | None = None
    resolved_at: float | None = None
    blind_since: float | None = None
    #: Since when there is too little traffic to say whether it is true.
    idle_since: float | None = None
    resolved_why: str = ""
    acknowledged_by: str = ""
    acknowledged_at: float | None = None
    note: str = ""
    muted: Muted | None = None
    #: The person who gets it next unless a person acknowledges it, and when; ``None`` for no step.
    escalates_at: float | None = None
    escalates_to: tuple[str, ...] = ()
    #: The text of the alert that explains it; empty for none.
    because: str = ""
    #: That one was resolved.
    because_ended: bool = False
    flapping_since: float | None = None
    #: The pods that it is about.
    pods: tuple[str, ...] = ()
    #: The number of its incident, and whether a person or time closed that one.
    incident: int | None = None
    incident_closed: bool = False

    @property
    def dependency(self) -> str:
        """That it is about; empty for none."""
        return self.subject.name if self.subject.kind == "breaker" else ""

    @property
    def words(self) -> str:
        """Its text. While its condition is not true: that of its worst moment, in the past tense.

        The last figure before it recovered is below its threshold.
        """
        return words_of(self.state, self.text, self.worst_text)

    @property
    def critical_since(self) -> float | None:
        """When it became critical, if that is later than its beginning; ``None`` while it is not critical.

        An alert began once, however often its severity changes: every page dates it by ``true_since``.
        """
        later = self.severity == "critical" and self.level_since - self.true_since >= 1
        return self.level_since if later else None

    @property
    def fired(self) -> bool:
        """It lasted for the time of its rule."""
        return self.fired_at is not None


def words_of(state: str, text: str, worst_text: str) -> str:
    """Its words: those of its worst moment, in the past tense, while its condition is not true."""
    over = state in (AlertState.RECOVERING, AlertState.RESOLVED)
    return past(worst_text or text) if over else text


def stored_alerts(environment: str) -> dict[str, StoredAlert]:
    """The alerts that are not resolved, by key, in the order of ``open_alerts``."""
    return {row.key: stored(row) for row in open_alerts(environment)}


def open_alerts(environment: str) -> list[Alert]:
    """Alerts that are not resolved: critical first, those that fire before pending ones, then the newest."""
    rows = list(
        Alert.objects.filter(environment=environment)
        .exclude(state=AlertState.RESOLVED)
        .select_related("cause", "incident")
        .without_chart()
    )
    return sorted(
        with_mutes(environment, rows),
        key=lambda row: (
            row.severity != "critical",
            row.state == AlertState.PENDING,
            -row.true_since.timestamp(),
            row.key,
        ),
    )


def with_mutes(environment: str, rows: list[Alert]) -> list[Alert]:
    """The alerts; each knows the mute that applies to it. One query."""
    now = timezone.now()
    mutes = list(not_ended(environment, now)) if rows else []
    for row in rows:
        row.muted = mute_of(mutes, row, now)
    return rows


def past_alerts(environment: str) -> QuerySet[Alert]:
    """Resolved alerts, the newest first."""
    rows = Alert.objects.filter(environment=environment, state=AlertState.RESOLVED)
    return rows.select_related("cause", "incident").without_chart().order_by("-resolved_at", "-id")


def stored(row: Alert) -> StoredAlert:
    return made_from(
        StoredAlert,
        row,
        state=AlertState(row.state),
        pods=tuple(row.pods),
        subject=Subject(
            kind=cast(SubjectKind, row.subject_kind), name=row.subject_name, quota=row.subject_quota
        ),
        **{name: at.timestamp() if (at := getattr(row, name)) else None for name in _MOMENTS},
        escalates_at=row.escalations[0][0] if row.escalations else None,
        escalates_to=tuple(row.escalations[0][1]) if row.escalations else (),
        because=words_of(row.cause.state, row.cause.text, row.cause.worst_text)
        if row.cause is not None
        else "",
        because_ended=row.cause is not None and row.cause.state == AlertState.RESOLVED,
        incident=row.incident_id,
        incident_closed=row.incident is not None and row.incident.closed_at is not None,
    )


def with_last_evaluation(facts: Facts) -> Facts:
    """The facts, with when a worker evaluated the rules last. An evaluation itself does without it."""
    at = Evaluation.objects.filter(environment=facts.environment).values_list("at", flat=True).first()
    return replace(facts, evaluated_at=at.timestamp()) if at is not None else facts
