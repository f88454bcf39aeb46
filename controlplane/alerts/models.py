"""Alerts over time: one row from the first true evaluation until the condition stayed away."""

from django.db import models

from controlplane.alerts.lifecycle import AlertState


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
    text = models.CharField(max_length=500)
    detail = models.CharField(max_length=2000, blank=True)
    runbook = models.CharField(max_length=100, blank=True)
    subject_kind = models.CharField(max_length=32)
    subject_name = models.CharField(max_length=200, blank=True)
    subject_quota = models.CharField(max_length=200, blank=True)
    acknowledged_by = models.CharField(max_length=200, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    #: What the person who acknowledged it wrote.
    note = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "key"],
                condition=~models.Q(state=AlertState.RESOLVED.value),
                name="alert_open_once",
            ),
        )
        indexes = (models.Index(fields=["environment", "-true_since"], name="alert_newest"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.key} {self.state}"


class Evaluation(models.Model):
    """When the rules of an environment were evaluated last, by the clock of Postgres."""

    environment = models.CharField(max_length=64, primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.environment} at {self.at}"
