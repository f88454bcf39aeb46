from django.contrib.postgres.fields import ArrayField
from django.db import models


class RefusalService(models.Model):
    """A service whose pods got a key for the tokens of their refusals.

    A token does not name its service. The control plane derives the keys of these and compares.
    """

    environment = models.CharField(max_length=64)
    service = models.CharField(max_length=64)
    #: The last day, in UTC, on which a gateway sent a key.
    last_on = models.DateField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "service"], name="refusal_service_once"),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.service}"


class DigestKey(models.Model):
    """The key of the digests in samples: of one environment, on one day in UTC. It is random."""

    environment = models.CharField(max_length=64)
    on = models.DateField()
    key = models.BinaryField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "on"], name="digest_key_once"),)

    def __str__(self) -> str:
        return f"{self.environment} on {self.on}"


class RefusalSample(models.Model):
    """One of many refusals, as a pod reported it. It stands for ``weight`` of them."""

    environment = models.CharField(max_length=64)
    at = models.DateTimeField()
    service = models.CharField(max_length=64)
    server = models.CharField(max_length=64)
    rule = models.CharField(max_length=300, blank=True)
    dependency = models.CharField(max_length=64, blank=True)
    reason = models.CharField(max_length=32)
    mode = models.CharField(max_length=16)
    tenant = models.CharField(max_length=200, blank=True)
    #: The template of a route.
    endpoint = models.CharField(max_length=120, blank=True)
    revision = models.BigIntegerField()
    retry_after_ms = models.BigIntegerField()
    #: Digests of who asked, in hexadecimal; empty if the service passed none.
    ip = models.CharField(max_length=16, blank=True)
    user = models.CharField(max_length=16, blank=True)
    api_key = models.CharField(max_length=16, blank=True)
    #: The trace id of W3C Trace Context; empty if the request belongs to no trace.
    trace = models.CharField(max_length=32, blank=True, default="", db_default="")
    weight = models.FloatField()

    class Meta:
        indexes = (models.Index(fields=["environment", "at"], name="refusal_sample_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.rule or self.reason} {self.at}"


class TopList(models.Model):
    """The names that were refused most in a minute or an hour: one of ``top_lists.KINDS``."""

    environment = models.CharField(max_length=64)
    kind = models.SmallIntegerField()
    grain_s = models.IntegerField()
    at = models.DateTimeField()
    #: The run of the gateway that counted a minute; 0 for an hour, which has those of all gateways.
    writer = models.IntegerField()
    names = ArrayField(models.TextField())
    counts = ArrayField(models.FloatField())
    #: All refusals of this kind, also of names that are not listed.
    total = models.FloatField()
    #: The most that any name can have been counted beyond its number.
    short_by = models.FloatField()

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "kind", "grain_s", "at", "writer"], name="refusal_top_list_once"
            ),
        )
        indexes = (models.Index(fields=["environment", "grain_s", "at"], name="refusal_top_list_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.kind} {self.at}"
