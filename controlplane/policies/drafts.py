"""Uploaded files, from the upload to the revision made from them."""

import uuid

from django.db import models
from django.db.models.functions import Now


class DraftState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    READING = "reading", "Reading"
    #: Compared with the configuration. An admin can apply it.
    READ = "read", "Read"
    #: Invalid. ``errors`` has the places.
    REFUSED = "refused", "Refused"
    ORDERED = "ordered", "Waiting to be applied"
    APPLYING = "applying", "Being applied"
    APPLIED = "applied", "Applied"


class Draft(models.Model):
    """One file, its changes, and its outcome."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    environment = models.CharField(max_length=64)
    filename = models.CharField(max_length=200)
    #: The file, compressed.
    content = models.BinaryField()
    prune = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())
    #: The user who uploaded it, as the audit will name them.
    actor = models.JSONField()
    state = models.CharField(max_length=16, choices=DraftState, default=DraftState.WAITING)
    #: The present step and its progress.
    step = models.CharField(max_length=64, blank=True)
    done = models.IntegerField(default=0)
    of = models.IntegerField(default=0)
    #: Line, place, message.
    errors = models.JSONField(default=list)
    #: A ``controlplane.editing.plans.Difference`` with its first things only.
    difference = models.JSONField(null=True)
    #: The revision of the configuration that it was compared with.
    compared_with = models.BigIntegerField(null=True)
    #: The reason of the revision that is made from it.
    reason = models.CharField(max_length=500, blank=True)
    revision = models.BigIntegerField(null=True)

    class Meta:
        indexes = (
            models.Index(
                fields=["created_at"],
                condition=models.Q(state__in=["waiting", "reading", "ordered", "applying"]),
                name="draft_unfinished",
            ),
        )

    def __str__(self) -> str:
        return self.filename

    @property
    def busy(self) -> bool:
        return self.state in (
            DraftState.WAITING,
            DraftState.READING,
            DraftState.ORDERED,
            DraftState.APPLYING,
        )
