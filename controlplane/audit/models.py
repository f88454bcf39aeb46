from typing import Any

import pgtrigger
from django.db import models
from django.db.models.functions import Now


class Entry(models.Model):
    """One change by a person, a token or the control plane. Never changed, never deleted."""

    at = models.DateTimeField(db_default=Now())
    actor = models.CharField(max_length=200)
    role = models.CharField(max_length=32)
    #: form, api, celery or command; sql for a row that was changed without the application.
    origin = models.CharField(max_length=16)
    address = models.CharField(max_length=64, blank=True)
    #: The selector of the token that was used; empty for a person with a session.
    token = models.CharField(max_length=32, blank=True, db_default="", default="")
    #: Username of the person who owned that token then; empty for a token without an owner.
    owner = models.CharField(max_length=150, blank=True, db_default="", default="")
    #: The request that made the change, as in ``X-Request-Id`` of its answer and in the log of web; empty for
    #: a task or a command. The id of the W3C trace that the request is part of, if the client sent one.
    request_id = models.CharField(max_length=64, blank=True, db_default="", default="")
    trace_id = models.CharField(max_length=32, blank=True, db_default="", default="")
    #: ``tenant_quota.set``, ``breaker.held``, ``token.created``: subject and past participle.
    action = models.CharField(max_length=64)
    target_kind = models.CharField(max_length=32)
    target_name = models.CharField(max_length=200)
    #: The target's fields before and after, flat; null where it did not exist.
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    environment = models.CharField(max_length=64, blank=True)
    #: Null for changes that are not published, such as a new token.
    epoch = models.BigIntegerField(null=True)
    revision = models.BigIntegerField(null=True)
    #: Counts the entries of one environment without gaps. The database sets it and the hash.
    sequence = models.BigIntegerField(null=True, editable=False)
    #: SHA-256 of the entry and of the previous entry's hash, see ``controlplane.audit.chain``.
    hash = models.CharField(max_length=64, null=True, editable=False)  # noqa: DJ001 - null until the database sets it
    #: Not stored: ``controlplane.accounts.by_person`` sets it.
    by_person: bool = False

    class Meta:
        verbose_name_plural = "entries"
        indexes = (
            models.Index(fields=["environment", "-at", "-id"], name="entry_newest_first"),
            models.Index(fields=["target_kind", "target_name", "-id"], name="entry_by_target"),
            # Budgets read these every few seconds.
            models.Index(
                fields=["environment", "-at"],
                condition=models.Q(action="counter.cleared"),
                name="entry_of_cleared_counter",
            ),
            # The audit is never deleted. Most entries have none of these.
            *(
                models.Index(
                    fields=[field, "-id"], condition=~models.Q(**{field: ""}), name=f"entry_by_{field}"
                )
                for field in ("request_id", "trace_id", "token", "owner")
            ),
        )
        constraints = (
            models.UniqueConstraint(fields=["environment", "sequence"], name="entry_chained_once"),
        )
        triggers = (
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete),
            pgtrigger.Trigger(
                name="never_emptied",
                operation=pgtrigger.Truncate,
                when=pgtrigger.Before,
                level=pgtrigger.Statement,
                func="RAISE EXCEPTION 'append_only: entries of the audit cannot be removed';",
            ),
        )

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target_name}"

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Field -> value before and after, for the fields that differ."""
        before, after = self.before or {}, self.after or {}
        return {
            field: (before.get(field), after.get(field))
            for field in sorted(before.keys() | after.keys())
            if before.get(field) != after.get(field) and field != "version"
        }


class ChainHead(models.Model):
    """The last entry of each chain. Its row is the lock that prevents two writers from forking it."""

    environment = models.CharField(primary_key=True, max_length=64)
    sequence = models.BigIntegerField()
    hash = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.environment}:{self.sequence}:{self.hash}"
