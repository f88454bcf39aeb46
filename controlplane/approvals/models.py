"""Change requests, and who approved them."""

import pgtrigger
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

#: The most approvals that an environment can require.
MAX_NEEDED = 5


class Rule(models.Model):
    """The number of approvals that an edit needs in one environment; none without a row."""

    environment = models.CharField(primary_key=True, max_length=64)
    needed = models.SmallIntegerField()

    class Meta:
        constraints = (
            models.CheckConstraint(condition=Q(needed__range=(0, MAX_NEEDED)), name="approvals_needed_range"),
        )

    def __str__(self) -> str:
        return f"{self.environment}: {self.needed}"


class RequestState(models.TextChoices):
    OPEN = "open", "Open"
    #: By as many people as needed. An admin may apply it.
    APPROVED = "approved", "Approved"
    APPLIED = "applied", "Applied"
    REJECTED = "rejected", "Rejected"
    WITHDRAWN = "withdrawn", "Withdrawn"
    EXPIRED = "expired", "Expired"


#: States of a request that is not decided yet.
PENDING = (RequestState.OPEN, RequestState.APPROVED)


class ChangeRequest(models.Model):
    """One edit that awaits approval. It becomes one revision, or nothing."""

    environment = models.CharField(max_length=64)
    state = models.CharField(max_length=16, choices=RequestState, default=RequestState.OPEN)
    #: Increases with every change of the request. An approval counts for one version only.
    version = models.IntegerField(default=1)
    #: The revision its difference was made from.
    base = models.BigIntegerField()
    #: Action and target, as the revision will have them.
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=500)
    #: The author, as the audit names them.
    author = models.CharField(max_length=200)
    role = models.CharField(max_length=32)
    origin = models.CharField(max_length=16)
    address = models.CharField(max_length=64, blank=True)
    #: Usernames of everyone who made or changed it: none of them may approve it. Empty for a program.
    persons = models.JSONField(default=list)
    #: Whether it was made from the whole configuration. Then any later change conflicts with it.
    whole = models.BooleanField(default=False)
    #: The revision that a rollback restores.
    restores = models.BigIntegerField(null=True, blank=True)
    #: The revision whose changes a revert undoes.
    reverts = models.BigIntegerField(null=True, blank=True)
    #: A scheduled change has the time when it is due, and the plan to apply.
    due_at = models.DateTimeField(null=True, blank=True)
    document = models.JSONField(null=True, blank=True)
    title = models.CharField(max_length=200, blank=True)
    #: And what must exist when it is due, see ``controlplane.schedules.models.Needs``.
    needs = models.CharField(max_length=16, blank=True, default="", db_default="")
    #: A change of the rule itself has the number of approvals needed afterwards.
    lowers_to = models.SmallIntegerField(null=True, blank=True)
    #: The audit entries that the edit would have made.
    entries = models.JSONField(default=list)
    #: The number of changed things, and SHA-256 of all changes.
    changed = models.IntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    #: A pending request ends then.
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)
    ended_reason = models.CharField(max_length=500, blank=True)
    #: The revision, or the schedule, that was made from it.
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
        """Return who approved its current version, as the audit names them."""
        return list(
            self.approvals.filter(version=self.version).order_by("at").values_list("actor", flat=True)
        )


class ProposedChange(models.Model):
    """One thing before and after, as ``policies.Change`` stores it for a revision."""

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
    """One person's approval of one version of a request."""

    request = models.ForeignKey(ChangeRequest, on_delete=models.PROTECT, related_name="approvals")
    version = models.IntegerField()
    #: Username.
    person = models.CharField(max_length=150)
    #: The name in the audit: that of the token, if they used one.
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
