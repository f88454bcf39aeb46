"""Change requests: what somebody wants to change, and who has agreed."""

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

#: As many approvals as an environment may ask for.
MOST_NEEDED = 5


class Rule(models.Model):
    """How many approvals an edit needs in one environment; without a row, none."""

    environment = models.CharField(primary_key=True, max_length=64)
    needed = models.SmallIntegerField()

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(needed__range=(0, MOST_NEEDED)), name="approvals_needed_range"
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}: {self.needed}"


class RequestState(models.TextChoices):
    OPEN = "open", "Open"
    #: By as many as are needed; somebody may apply it.
    APPROVED = "approved", "Approved"
    APPLIED = "applied", "Applied"
    REJECTED = "rejected", "Rejected"
    WITHDRAWN = "withdrawn", "Withdrawn"
    EXPIRED = "expired", "Expired"


#: States in which anything can still become of it.
PENDING = (RequestState.OPEN, RequestState.APPROVED)


class ChangeRequest(models.Model):
    """One edit that waits: it becomes one revision, or nothing."""

    environment = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=RequestState, default=RequestState.OPEN)
    #: Rises with every change of the request. An approval counts for one version only.
    version = models.IntegerField(default=1)
    #: The revision its difference was made from.
    base = models.BigIntegerField()
    #: What is done, and to what, as the revision will say it.
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=500)
    #: Who asked for it, as the audit names them.
    author = models.CharField(max_length=200)
    role = models.CharField(max_length=32)
    origin = models.CharField(max_length=16)
    address = models.CharField(max_length=64, blank=True)
    #: Usernames of everybody who made or changed it: none of them may approve it. Empty for a program.
    persons = models.JSONField(default=list)
    #: Whether it was made from the whole configuration: any other change of that is a conflict then.
    whole = models.BooleanField(default=False)
    #: Of a rollback: the revision it brings back.
    restores = models.BigIntegerField(null=True, blank=True)
    #: Of a change for later: when, and the plan that is applied then.
    due_at = models.DateTimeField(null=True, blank=True)
    document = models.JSONField(null=True, blank=True)
    title = models.CharField(max_length=200, blank=True)
    #: Of the setting itself: how many approvals would be needed afterwards.
    lowers_to = models.SmallIntegerField(null=True, blank=True)
    #: Audit entries the edit would have made.
    entries = models.JSONField(default=list)
    #: How many things it changes, and SHA-256 over all of them.
    changed = models.IntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    #: Nobody waits for ever.
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)
    ended_reason = models.CharField(max_length=500, blank=True)
    #: What it became: a revision, or a schedule.
    revision = models.BigIntegerField(null=True, blank=True)
    schedule = models.BigIntegerField(null=True, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(state__in=RequestState.values), name="request_state_known"),
            models.UniqueConstraint(fields=["environment", "revision"], name="request_of_revision"),
            models.UniqueConstraint(fields=["schedule"], name="request_of_schedule"),
        )
        indexes = (
            models.Index(fields=["environment", "-id"], name="request_newest_first"),
            models.Index(
                fields=["environment", "expires_at"],
                condition=Q(state__in=["open", "approved"]),
                name="request_pending",
            ),
        )

    def __str__(self) -> str:
        return f"#{self.pk} {self.action} {self.target}".strip()

    @property
    def pending(self) -> bool:
        return self.state in PENDING

    @property
    def approved_by(self) -> list[str]:
        """Who has approved it as it is, as the audit names them."""
        return list(
            self.approvals.filter(version=self.version).order_by("at").values_list("actor", flat=True)
        )


class ProposedChange(models.Model):
    """One thing before and after, as ``policies.Change`` keeps it of a revision."""

    request = models.ForeignKey(ChangeRequest, on_delete=models.CASCADE, related_name="changes")
    kind = models.CharField(max_length=16)
    name = models.CharField(max_length=200)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["request", "kind", "name"], name="proposed_change_once"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Approval(models.Model):
    """One person's word for one version of a request."""

    request = models.ForeignKey(ChangeRequest, on_delete=models.PROTECT, related_name="approvals")
    version = models.IntegerField()
    #: Username.
    person = models.CharField(max_length=150)
    #: As the audit names them; a token where they used one.
    actor = models.CharField(max_length=200)
    at = models.DateTimeField(db_default=Now())
    note = models.CharField(max_length=500, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["request", "version", "person"], name="approved_once"),
        )
        triggers = (pgtrigger.Protect(name="approval_stays", operation=pgtrigger.Update | pgtrigger.Delete),)

    def __str__(self) -> str:
        return f"{self.person} for {self.request_id}.{self.version}"
