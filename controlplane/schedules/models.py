from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class ScheduleState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    APPLIED = "applied", "Applied"
    #: It could not be applied when it was due. ``error`` says why.
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"
    #: Edits need approval now, so it became a change request when it was due.
    PROPOSED = "proposed", "Waiting for approval"


class Needs(models.TextChoices):
    """The state that a scheduled change expects of the entities that it names, when it is due."""

    ANYTHING = "", "Anything"
    #: They do not exist yet. So it never overwrites what another person has created since.
    NEW = "new", "New"
    #: They still exist. So it never creates half of what another person has removed since.
    PRESENT = "present", "Present"


class Schedule(models.Model):
    """A change that becomes one revision at a given time."""

    environment = models.CharField(max_length=64)
    due_at = models.DateTimeField()
    #: The change as a plan, see ``controlplane.editing.plans``.
    document = models.JSONField()
    needs = models.CharField(max_length=16, choices=Needs, blank=True, default="", db_default="")
    #: The revision that its author, or its approvers, saw; 0 for a plan, which states all that it needs.
    base = models.BigIntegerField(default=0, db_default=0)
    #: The change in one line.
    title = models.CharField(max_length=200)
    reason = models.CharField(max_length=500)
    actor = models.CharField(max_length=200)
    role = models.CharField(max_length=32)
    created_at = models.DateTimeField(db_default=Now())
    state = models.CharField(max_length=16, choices=ScheduleState, default=ScheduleState.WAITING)
    #: When it was announced that it is due soon.
    announced_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)
    error = models.CharField(max_length=1000, blank=True)
    #: Whether an operator has acknowledged the failure.
    seen = models.BooleanField(default=False)
    #: The revision that was made from it.
    revision = models.BigIntegerField(null=True, blank=True)
    #: The change request that it became.
    request = models.BigIntegerField(null=True, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(state__in=ScheduleState.values), name="schedule_state_known"),
        )
        indexes = (
            models.Index(fields=["due_at"], condition=Q(state="waiting"), name="schedule_waiting"),
            models.Index(fields=["environment", "-due_at"], name="schedule_newest_first"),
        )

    def __str__(self) -> str:
        return self.title
