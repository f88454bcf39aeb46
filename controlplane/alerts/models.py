"""Alerts over time: one row from the first true evaluation until the condition stayed away."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from django.db import models
from django.db.models.functions import Now

from controlplane.alerts.lifecycle import AlertState
from controlplane.encryption import EncryptedUrl


@dataclass(frozen=True, kw_only=True)
class Muted:
    """The mute that applies to an alert, and the end of its present period."""

    mute: int
    by: str
    reason: str
    until: datetime
    #: It is repeated after ``until``.
    weekly: bool


class AlertQuerySet(models.QuerySet["Alert"]):
    def without_chart(self) -> Self:
        """Leave out, also of causes, what only the page of one alert draws: kilobytes of each row."""
        return self.defer("points", "turns", "cause__points", "cause__turns")


class Alert(models.Model):
    """One episode of one alert. Pages and notifications read the same rows."""

    environment = models.CharField(max_length=64)
    #: ``local``, ``open:payments-api``: unique among the alerts that are not resolved.
    key = models.CharField(max_length=200)
    level = models.SmallIntegerField()
    severity = models.CharField(max_length=16)
    #: The worst severity of the episode.
    worst = models.CharField(max_length=16)
    state = models.CharField(max_length=16, choices=[(state.value, state.value) for state in AlertState])
    true_since = models.DateTimeField()
    level_since = models.DateTimeField()
    fired_at = models.DateTimeField(null=True, blank=True)
    clear_since = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    #: Its figures are missing since then, so that its state does not change.
    blind_since = models.DateTimeField(null=True, blank=True)
    #: Too little traffic since then to say whether it is true: it fires on for 10 minutes.
    idle_since = models.DateTimeField(null=True, blank=True)
    #: One of ``ResolvedWhy``; empty for an open alert, and for one that an earlier release resolved.
    resolved_why = models.CharField(max_length=16, blank=True, default="", db_default="")
    text = models.CharField(max_length=500)
    detail = models.CharField(max_length=2000, blank=True)
    #: Its words when it began and when it fired: ``text`` has the figures of now. Empty for an alert of an
    #: earlier release.
    begun_text = models.CharField(max_length=500, blank=True, default="", db_default="")
    begun_detail = models.CharField(max_length=2000, blank=True, default="", db_default="")
    fired_text = models.CharField(max_length=500, blank=True, default="", db_default="")
    #: Its words when it reached its worst severity: the figures agree with that.
    worst_text = models.CharField(max_length=500, blank=True, default="", db_default="")
    runbook = models.CharField(max_length=100, blank=True)
    subject_kind = models.CharField(max_length=32)
    subject_name = models.CharField(max_length=200, blank=True)
    subject_quota = models.CharField(max_length=200, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    #: The text of the person who acknowledged it.
    note = models.CharField(max_length=500, blank=True)
    #: The pods that it is about. Empty if there are none, or more than a mute of pods may hide.
    pods = models.JSONField(default=list, db_default=[], blank=True)
    #: The severity that receivers know of; empty while they know of nothing.
    notified = models.CharField(max_length=16, blank=True, default="", db_default="")
    #: ``[[1777900331.0, ["boss"]]]``: who gets it next, in unix seconds, unless a person acknowledges it.
    escalations = models.JSONField(default=list, db_default=[], blank=True)
    #: The alert that explains it, so that it is not sent.
    cause = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="explained"
    )
    #: The incident that it opened or joined.
    incident = models.ForeignKey(
        "Incident", on_delete=models.SET_NULL, null=True, blank=True, related_name="alerts"
    )
    #: When it was sent within the last hour, also by the alerts before with this key, in unix seconds.
    changes = models.JSONField(default=list, db_default=[], blank=True)
    #: It changes so often that receivers got one message about that, and get the next when it is stable.
    flapping_since = models.DateTimeField(null=True, blank=True)
    #: The figure of its rule over its episode, and the turns of its state: see
    #: ``controlplane.alerts.state.measured_points``.
    points = models.JSONField(default=list, db_default=[], blank=True)
    turns = models.JSONField(default=list, db_default=[], blank=True)
    #: Not stored: ``with_mutes`` sets it.
    muted: Muted | None = None

    objects = AlertQuerySet.as_manager()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "key"],
                condition=~models.Q(state=AlertState.RESOLVED.value),
                name="alert_open_once",
            ),
        )
        indexes = (
            models.Index(fields=["environment", "-true_since"], name="alert_newest"),
            models.Index(
                fields=["environment", "key", "-resolved_at"],
                condition=models.Q(state=AlertState.RESOLVED.value),
                name="alert_resolved_of_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.key} {self.state}"


class Incident(models.Model):
    """A problem that people work on: from the first alert of a cause until all its alerts stay resolved."""

    environment = models.CharField(max_length=64)
    #: Key of the alert that opened it: an environment has one open incident of a cause.
    cause = models.CharField(max_length=200)
    title = models.CharField(max_length=500)
    #: The worst of its alerts.
    level = models.SmallIntegerField()
    severity = models.CharField(max_length=16)
    #: The smallest ``true_since`` of its alerts.
    started_at = models.DateTimeField()
    opened_at = models.DateTimeField()
    #: When the first message about it was sent. Deliveries are kept for a shorter time.
    detected_at = models.DateTimeField(null=True, blank=True)
    #: Since when all of its alerts are resolved.
    quiet_since = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    #: Empty if it closed automatically.
    closed_by = models.CharField(max_length=200, blank=True, default="", db_default="")
    #: How often its cause returned after it was closed.
    reopened = models.IntegerField(default=0, db_default=0)
    merged_into = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True)
    #: By how many pods a pod without Redis divided its limits when it opened.
    divisor = models.IntegerField(default=1, db_default=1)
    #: Links of an earlier number do not open the report any more.
    share_version = models.IntegerField(default=1, db_default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "cause"],
                condition=models.Q(closed_at=None),
                name="incident_open_once",
            ),
        )
        indexes = (models.Index(fields=["environment", "-started_at"], name="incident_newest"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.pk} {self.title}"


class IncidentLine(models.Model):
    """A text of a person in the timeline: a note, or a step of a runbook that was done or undone."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="lines")
    at = models.DateTimeField(db_default=Now())
    by = models.CharField(max_length=200)
    #: The note, or the words of the step.
    text = models.CharField(max_length=2_000)
    #: Empty for a note.
    runbook = models.CharField(max_length=100, blank=True, default="", db_default="")
    #: The number of the step in its runbook, from 1.
    step = models.IntegerField(null=True, blank=True)
    done = models.BooleanField(default=False, db_default=False)

    class Meta:
        indexes = (models.Index(fields=["incident", "-at", "-id"], name="incident_line_newest"),)

    def __str__(self) -> str:
        return f"{self.incident_id} {self.by}"


class Marker(models.Model):
    """Something that happened outside of Fuseboard and may explain an incident: a deployment."""

    environment = models.CharField(max_length=64)
    at = models.DateTimeField()
    text = models.CharField(max_length=200)
    #: The service that it is about; empty for none.
    service = models.CharField(max_length=64, blank=True, default="", db_default="")
    by = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = (models.Index(fields=["environment", "-at"], name="marker_newest"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.at} {self.text}"


#: The name of the advisory lock of an environment while its alerts are evaluated. A person who moves alerts
#: waits for it; the evaluation leaves the environment out while another process has the lock.
EVALUATION_LOCK = "fuseboard.alerts"


class Evaluation(models.Model):
    """When the rules of an environment were evaluated last, by the clock of Postgres."""

    environment = models.CharField(max_length=64, primary_key=True)
    at = models.DateTimeField()
    #: The figures of ``/metrics`` at that moment, see ``controlplane.status.measured``.
    measured = models.JSONField(default=dict, db_default={})
    #: The last time in which nobody evaluated for longer than usual: gateways may have sent alerts then.
    paused_at = models.DateTimeField(null=True, blank=True)
    resumed_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.environment} at {self.at}"


class Mute(models.Model):
    """A period in which alerts that match are displayed, but sent to no receiver."""

    environment = models.CharField(max_length=64)
    #: Each that is not empty must match. ``web-*`` stands for every pod whose name begins like this.
    rule = models.CharField(max_length=64, blank=True)
    dependency = models.CharField(max_length=200, blank=True)
    pod = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=500)
    by = models.CharField(max_length=200)
    starts_at = models.DateTimeField()
    #: The first period, if it is repeated.
    ends_at = models.DateTimeField()
    #: Repeated every 7 days, until a person ends it.
    weekly = models.BooleanField(default=False)
    #: A person ended the period before this moment, and only that one.
    skipped_until = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    #: When a person ended it.
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)

    class Meta:
        indexes = (
            models.Index(
                fields=["environment"], condition=models.Q(ended_at=None), name="alert_mute_not_ended"
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.rule}/{self.dependency}/{self.pod} until {self.ends_at}"


class Receiver(models.Model):
    """A service that gets news of alerts: signed webhooks, a chat, a pager, or mail."""

    environment = models.CharField(max_length=64)
    name = models.CharField(max_length=64)
    #: Contains secrets. Empty if it cannot be decrypted any more.
    url = EncryptedUrl()
    #: The lowest level and severity that it gets.
    least_level = models.SmallIntegerField(default=2)
    least_severity = models.CharField(max_length=16, default="warning")
    #: It gets the weekly summary too.
    weekly = models.BooleanField(default=False, db_default=False)
    #: Its secret is derived from this. The one before is valid until ``old_secret_until``.
    secret_version = models.IntegerField(default=1)
    old_secret_until = models.DateTimeField(null=True, blank=True)
    #: Empty while it gets news.
    disabled_because = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "name"], name="alert_receiver_once"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.name}"


class Route(models.Model):
    """A choice of receivers for alerts. The first that matches decides; the one named default is the last."""

    environment = models.CharField(max_length=64)
    name = models.CharField(max_length=64)
    #: Its order, from 1. The default has none.
    place = models.IntegerField(default=1)
    #: The owner of the dependency that an alert is about; empty for every alert.
    owner = models.CharField(max_length=200, blank=True)
    least_level = models.SmallIntegerField(default=1)
    least_severity = models.CharField(max_length=16, default="warning")
    #: 0 is Monday; empty for every day.
    days = models.JSONField(default=list, blank=True)
    #: ``09:00`` in the zone; both empty for the whole day.
    begins = models.CharField(max_length=5, blank=True)
    ends = models.CharField(max_length=5, blank=True)
    zone = models.CharField(max_length=64, default="UTC")
    #: ``[[0, ["pager"]]]``: minutes after the alert fired, and the receivers that get it then.
    steps = models.JSONField(default=list)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "name"], name="alert_route_once"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.name}"


class DeliveryState(models.TextChoices):
    WAITING = "waiting"
    #: A process sends it, until its lease ends.
    SENDING = "sending"
    SENT = "sent"
    GAVE_UP = "gave_up"
    #: A later one says everything, and this one never left.
    SUPERSEDED = "superseded"


class Delivery(models.Model):
    """One message to one receiver. Every attempt has its id, so that a receiver recognizes a repetition."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    receiver = models.ForeignKey(Receiver, on_delete=models.CASCADE)
    #: ``None`` for a test, and for a weekly summary.
    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, null=True, blank=True)
    kind = models.CharField(max_length=16)
    #: Among those of one alert to one receiver.
    place = models.IntegerField(default=1)
    document = models.JSONField()
    state = models.CharField(max_length=16, choices=DeliveryState, default=DeliveryState.WAITING)
    attempts = models.IntegerField(default=0)
    not_before = models.DateTimeField(db_default=Now())
    lease_until = models.DateTimeField(null=True, blank=True)
    #: Grows with each claim: a process whose lease ended changes nothing any more.
    fence = models.IntegerField(default=0)
    #: The result of the last attempt, without secrets.
    result = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "deliveries"
        constraints = (
            models.UniqueConstraint(fields=["receiver", "alert", "place"], name="alert_delivery_once"),
        )
        indexes = (
            models.Index(
                fields=["not_before"],
                condition=models.Q(state__in=("waiting", "sending")),
                name="alert_delivery_due",
            ),
            models.Index(fields=["receiver", "-created_at"], name="alert_delivery_newest"),
        )

    def __str__(self) -> str:
        return f"{self.kind} to {self.receiver_id}, {self.state}"
