import re
from datetime import datetime
from typing import Any, Self

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from fuseboard.contract.words import DrillKind

#: Version 0.1.0 stored ``3 servers`` and ``20 % of 10 servers``.
_SERVERS = re.compile(r"(?<=[0-9] )servers$")


class Drill(models.Model):
    """One drill. Ended ones stay as history."""

    environment = models.CharField(max_length=64)
    kind = models.CharField(max_length=16, choices=[(kind.value, kind.value) for kind in DrillKind])
    #: Chosen once, at the start: what an admin saw is what takes part.
    servers = ArrayField(models.CharField(max_length=64))
    #: How they were chosen, in words: ``3 pods``, ``20 % of 10 pods``, ``service checkout``.
    chosen = models.CharField(max_length=200)
    reason = models.CharField(max_length=500)
    actor = models.CharField(max_length=200)
    began_at = models.DateTimeField(db_default=Now())
    ends_at = models.DateTimeField()
    #: Ended early, by an operator.
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.CharField(max_length=200, blank=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=Q(kind__in=[kind.value for kind in DrillKind]), name="drill_kind_known"
            ),
            models.CheckConstraint(condition=Q(ends_at__gt=F("began_at")), name="drill_ends_after_start"),
            models.CheckConstraint(condition=~Q(reason=""), name="drill_has_reason"),
            models.CheckConstraint(condition=Q(servers__len__gt=0), name="drill_has_servers"),
        )
        indexes = (models.Index(fields=["environment", "-began_at"], name="drill_newest_first"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.kind} {self.chosen}"

    @classmethod
    def from_db(cls, *args: Any, **options: Any) -> Self:
        """Read the selection of a drill of version 0.1.0 in the present words."""
        drill = super().from_db(*args, **options)
        if "chosen" in drill.__dict__:
            drill.chosen = _SERVERS.sub("pods", drill.chosen)
        return drill

    def under_way(self, now: datetime) -> bool:
        return self.ended_at is None and self.ends_at > now
