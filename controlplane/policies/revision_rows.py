"""The changes of each revision. They are kept forever, so that any revision can be read and restored."""

import pgtrigger
from django.db import models
from django.db.models.functions import Now


class Revision(models.Model):
    """One edit of an environment."""

    environment = models.CharField(max_length=64)
    epoch = models.BigIntegerField()
    number = models.BigIntegerField()
    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=200)
    role = models.CharField(max_length=32)
    #: form, api, celery or command.
    origin = models.CharField(max_length=16)
    #: Action and target: ``tenant_quota.set`` and ``acme``.
    action = models.CharField(max_length=64)
    target = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=500, blank=True)
    #: The number of changed things.
    changed = models.IntegerField(default=0)
    #: The revision that a rollback restored.
    restores = models.BigIntegerField(null=True, blank=True)
    #: The revision whose changes a revert undid.
    reverts = models.BigIntegerField(null=True, blank=True)
    #: Not stored: ``controlplane.accounts.by_person`` sets it.
    by_person: bool = False

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "number"], name="revision_number_once"),
        )
        indexes = (
            models.Index(
                fields=["environment", "reverts"],
                condition=models.Q(reverts__isnull=False),
                name="revision_by_reverted",
            ),
        )
        triggers = (pgtrigger.Protect(name="revision_stays", operation=pgtrigger.Update | pgtrigger.Delete),)

    def __str__(self) -> str:
        return f"{self.environment} {self.epoch}.{self.number}"


class Change(models.Model):
    """One thing before and after a revision; null where it did not exist."""

    revision = models.ForeignKey(Revision, on_delete=models.PROTECT, related_name="changes")
    #: environment, tier, dependency or tenant.
    kind = models.CharField(max_length=16)
    name = models.CharField(max_length=200)
    #: Flat fields, see ``controlplane.policies.fields``.
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    #: Not stored: whether a person made the revision.
    by_person: bool = False

    class Meta:
        constraints = (models.UniqueConstraint(fields=["revision", "kind", "name"], name="change_once"),)
        indexes = (models.Index(fields=["kind", "name", "-revision"], name="change_by_thing"),)
        triggers = (pgtrigger.Protect(name="change_stays", operation=pgtrigger.Update | pgtrigger.Delete),)

    def __str__(self) -> str:
        return f"{self.revision}: {self.kind} {self.name}"
