from datetime import UTC, datetime, timedelta

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from controlplane.policies.models import Dependency
from fuseboard.contract.words import BreakerState, OverrideMode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Override(models.Model):
    """A person's temporary setting of a breaker. Ended overrides stay as history."""

    dependency = models.ForeignKey(Dependency, on_delete=models.PROTECT, related_name="overrides")
    mode = models.CharField(max_length=16, choices=[(mode.value, mode.value) for mode in OverrideMode])
    reason = models.CharField(max_length=500)
    actor = models.CharField(max_length=200)
    created_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    #: Username or token name of who ended it; ``fuseboard`` when it expired.
    ended_by = models.CharField(max_length=200, blank=True)
    #: An address, or a key of the tracker that ``FUSEBOARD_TICKET_URL`` names; empty for none.
    ticket = models.CharField(max_length=300, blank=True, default="", db_default="")
    #: The revision that made it.
    revision = models.BigIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["dependency"], condition=Q(ended_at__isnull=True), name="override_one_at_a_time"
            ),
            models.CheckConstraint(
                condition=Q(mode__in=[mode.value for mode in OverrideMode]), name="override_mode_known"
            ),
            models.CheckConstraint(
                condition=Q(expires_at__gt=F("created_at")), name="override_expires_after_start"
            ),
            models.CheckConstraint(condition=~Q(reason=""), name="override_has_reason"),
        )
        indexes = (models.Index(fields=["dependency", "-created_at"], name="override_newest_first"),)

    def __str__(self) -> str:
        return f"{self.dependency} {self.mode}"

    @property
    def expires_at_us(self) -> int:
        return (self.expires_at - _EPOCH) // timedelta(microseconds=1)

    def in_force(self, now: datetime) -> bool:
        return self.ended_at is None and self.expires_at > now


class Transition(models.Model):
    """One change of a breaker's state, decided in Redis and stored once per generation."""

    dependency = models.ForeignKey(Dependency, on_delete=models.CASCADE, related_name="transitions")
    generation = models.BigIntegerField()
    at = models.DateTimeField()
    #: ``missing`` when Redis had lost the breaker.
    from_state = models.CharField(max_length=16)
    to_state = models.CharField(max_length=16, choices=[(state.value, state.value) for state in BreakerState])
    #: ``consecutive``, ``ratio``, ``slow``, ``probe_failed``, an override's mode, ``reset``, ...
    cause = models.CharField(max_length=64)
    #: The person who overrode or reset it; empty when the fleet tripped it.
    actor = models.CharField(max_length=200, blank=True)
    #: The pod whose report decided it; empty for the control plane.
    server = models.CharField(max_length=64, blank=True)
    #: Counts at the trip: calls, failures, slow, consecutive, and the threshold that was
    #: reached. Null for other transitions, and for trips by an agent of version 0.1.
    figures = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["dependency", "generation"], name="transition_once"),)
        indexes = (models.Index(fields=["dependency", "-at"], name="transition_newest_first"),)

    def __str__(self) -> str:
        return f"{self.dependency} {self.from_state} -> {self.to_state}"


class StreamPosition(models.Model):
    """The last stored entry of a dependency's stream of transitions."""

    dependency = models.OneToOneField(Dependency, on_delete=models.CASCADE, related_name="stream_position")
    last_id = models.CharField(max_length=64, default="0-0")

    def __str__(self) -> str:
        return f"{self.dependency} {self.last_id}"
