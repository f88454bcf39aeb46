"""How far the audit was exported."""

from django.db import models


class Export(models.Model):
    """One place that entries go to. Only the process with the newest fence moves it."""

    #: ``webhook`` or ``file``.
    target = models.CharField(max_length=16, primary_key=True)
    #: Environment -> number and hash of its last exported entry. Each chain counts without gaps, in the order
    #: of commits; ids of rows do not, so an entry that commits late would be left out.
    positions = models.JSONField(default=dict)
    #: Environment -> number of the entry that the target refuses, how often it did, and what it answered.
    refusals = models.JSONField(default=dict, db_default={})
    lease_until = models.DateTimeField(null=True, blank=True)
    fence = models.IntegerField(default=0)
    #: Failures since the last success.
    failures = models.IntegerField(default=0)
    not_before = models.DateTimeField(null=True, blank=True)
    #: The problem of the last attempt, without secrets; empty after a success.
    problem = models.CharField(max_length=500, blank=True, default="")

    def __str__(self) -> str:
        return f"{self.target} {self.positions}"
