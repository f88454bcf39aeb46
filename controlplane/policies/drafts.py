"""Files people have uploaded, between the upload and the revision they become."""

import uuid

from django.db import models
from django.db.models.functions import Now


class DraftState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    READING = "reading", "Reading"
    #: Compared with the configuration; somebody may apply it.
    READ = "read", "Read"
    #: Something is wrong with it: ``errors`` says where.
    REFUSED = "refused", "Refused"
    ORDERED = "ordered", "Waiting to be applied"
    APPLYING = "applying", "Being applied"
    APPLIED = "applied", "Applied"


class Draft(models.Model):
    """One file, what it would change, and what became of it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    environment = models.CharField(max_length=64)
    filename = models.CharField(max_length=200)
    #: The file, compressed.
    content = models.BinaryField()
    prune = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now())
    #: Who uploaded it, as the audit will name them.
    actor = models.JSONField()
    state = models.CharField(max_length=16, choices=DraftState, default=DraftState.WAITING)
    #: What is being done, and how far it is.
    step = models.CharField(max_length=64, blank=True)
    done = models.IntegerField(default=0)
    of = models.IntegerField(default=0)
    #: Line, place, message.
    errors = models.JSONField(default=list)
    #: Of ``controlplane.editing.plans.Difference``; the first things only.
    difference = models.JSONField(null=True)
    #: The configuration it was compared with.
    compared_with = models.BigIntegerField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    #: Of the revision it became.
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
