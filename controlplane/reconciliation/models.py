from django.db import models
from django.db.models.functions import Now


class AllowedAlone(models.Model):
    """Requests that pods allowed without Redis for one limit in one span of time, as of the last copy.

    A row without a length is the sum of a limit over all times, or a part of it whose time is unknown.
    """

    environment = models.CharField(max_length=64)
    #: The subject of the limit: ``t:`` or ``i:`` and a digest (tenant or caller), or ``d:`` and a dependency.
    domain = models.CharField(max_length=128)
    #: The field in Redis; see ``fuseboard.contract.offline_fields``.
    field = models.CharField(max_length=300)
    #: The field of the sum of the limit.
    counter = models.CharField(max_length=300)
    #: The hash in Redis, and its last value. Counts are differences of two readings of one hash.
    hash = models.CharField(max_length=64, blank=True)
    value = models.BigIntegerField()
    #: Everything that was copied so far.
    amount = models.BigIntegerField()
    start = models.DateTimeField(null=True, blank=True)
    length_s = models.IntegerField(default=0)
    shadow = models.BooleanField(default=False)
    #: Empty when no registered tenant has this digest, and for limits of all tenants together.
    tenant = models.CharField(max_length=200, blank=True)
    dependency = models.CharField(max_length=64, blank=True)
    #: The name of the limit.
    rule = models.CharField(max_length=64)
    measure = models.CharField(max_length=64, blank=True)
    #: The most that the limit allowed in this span when it was first copied; ``None`` if it was not known.
    capacity = models.BigIntegerField(null=True, blank=True)
    #: The window is shorter than the span, so that more than ``capacity`` fits in none of its windows.
    shorter = models.BooleanField(default=False)
    #: One of several counters of the limit: it counts each address, login, key or endpoint.
    divided = models.BooleanField(default=False)
    first_at = models.DateTimeField(db_default=Now())
    copied_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name_plural = "allowed alone"
        constraints = (
            models.UniqueConstraint(fields=["environment", "domain", "field"], name="allowed_alone_once"),
        )
        indexes = (
            models.Index(fields=["environment", "start"], name="allowed_alone_by_time"),
            models.Index(fields=["copied_at"], name="allowed_alone_by_copy"),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.domain}/{self.field} {self.amount}"


class LostCounts(models.Model):
    """The report of one process of a pod about counts that it lacks, and about journals of dead pods."""

    environment = models.CharField(max_length=64)
    server = models.CharField(max_length=64)
    boot = models.CharField(max_length=64)
    since = models.DateTimeField()
    until = models.DateTimeField()
    #: Calls, for lack of room.
    uncounted = models.BigIntegerField(default=0)
    #: Journals of dead pods that were too old: it is unknown what they counted.
    expired = models.BigIntegerField(default=0, db_default=0)
    #: Journals of dead pods that this process reported. Nothing in them is lost.
    adopted = models.BigIntegerField(default=0, db_default=0)
    #: The count in its last heartbeat. Another pod may have reported it since, from its disk.
    unreported = models.BigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "lost counts"
        constraints = (
            models.UniqueConstraint(fields=["environment", "server", "boot"], name="lost_counts_once"),
        )
        indexes = (models.Index(fields=["environment", "until"], name="lost_counts_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.server} {self.uncounted} {self.unreported}"


class Copying(models.Model):
    """The one row that a worker locks while it copies, with how far it came."""

    id = models.SmallIntegerField(primary_key=True, default=1)
    #: Primary -> cursor of SCAN, of those that the copy in progress has not finished.
    cursors = models.JSONField(default=dict)
    #: When the last complete copy began and ended; before the first one, null.
    began_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    #: The beginning of the copy in progress.
    running_since = models.DateTimeField(null=True, blank=True)
    #: Why the last one failed; empty when it did not.
    problem = models.CharField(max_length=500, blank=True, default="")
    #: Environments with as many rows as are kept: what is new there is not copied.
    full = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"copied until {self.began_at}"
