from django.db import models

from controlplane.policies.limits import LimitColumns


class SuggestionKind(models.TextChoices):
    #: The vendor states less than is configured, or more while our limit refuses calls.
    LIMIT = "limit", "lower limit"
    TOO_LOW = "too_low", "higher limit"
    #: Pods follow the vendor with fewer calls at once than are configured.
    SLOTS = "slots", "fewer calls at once"
    #: Others use the same key.
    OTHERS = "others", "others use the key"
    #: The vendor refuses calls, and states no lower number.
    REFUSED = "refused", "refused calls"


class Suggestion(models.Model):
    """A suggestion for one limit of a vendor, with the evidence of the last minutes."""

    environment = models.CharField(max_length=64)
    dependency = models.CharField(max_length=64)
    limit = models.CharField(max_length=64)
    kind = models.CharField(max_length=16, choices=SuggestionKind)
    #: The suggested limit. For ``others`` and ``refused`` the part of calls, in percent.
    number = models.BigIntegerField()
    #: The configured limit that it is about. Rows of earlier versions do not have the algorithm.
    configured = models.BigIntegerField()
    algorithm = models.CharField(max_length=32, default="", db_default="")
    window_s = models.IntegerField(default=0, db_default=0)
    evidence = models.CharField(max_length=500)
    first_at = models.DateTimeField()
    #: When the evidence was last found.
    last_at = models.DateTimeField()
    #: The number that a person declined; null for none.
    declined_number = models.BigIntegerField(null=True)
    declined_by = models.CharField(max_length=200, blank=True)
    declined_reason = models.CharField(max_length=500, blank=True)
    declined_at = models.DateTimeField(null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "dependency", "limit", "kind"], name="suggestion_once"
            ),
            models.CheckConstraint(
                condition=models.Q(kind__in=SuggestionKind.values), name="suggestion_kind_known"
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.dependency}/{self.limit}: {self.kind} {self.number}"

    def is_about(self, limit: LimitColumns) -> bool:
        """Whether the limit is as it was when the evidence was found."""
        about = self.configured, self.algorithm, self.window_s
        return about == (limit.limit, limit.algorithm, limit.window_s)

    @property
    def is_declined(self) -> bool:
        """A declined one comes back when its number differs by 10 % from the declined one."""
        declined = self.declined_number
        return declined is not None and abs(self.number - declined) * 10 < declined


class Following(models.Model):
    """A limit of which pods apply a lower number than the configured one, as the audit knows it."""

    environment = models.CharField(max_length=64)
    dependency = models.CharField(max_length=64)
    limit = models.CharField(max_length=64)
    began_at = models.DateTimeField()
    #: When pods last applied a lower number, and which.
    last_at = models.DateTimeField()
    number = models.BigIntegerField()
    #: The audit has an entry that it reached its floor.
    at_floor = models.BooleanField(default=False)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "dependency", "limit"], name="following_once"),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.dependency}/{self.limit}: {self.number}"
