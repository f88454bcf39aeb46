from django.db import models


class Demand(models.Model):
    """Requests of one tenant in one span of time, whatever the answer was.

    Pods report the tenants that are busiest at a time. A tenant without a row was not among them, and
    asked for less than every tenant that has one.
    """

    environment = models.CharField(max_length=64)
    tenant = models.CharField(max_length=200)
    #: Length of the span in seconds: 10, 60 or 3600.
    grain_s = models.IntegerField()
    #: Its start, a multiple of its length.
    at = models.DateTimeField()
    asked = models.BigIntegerField()
    #: Requests of these that were answered 429.
    refused = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "demand"
        constraints = (
            models.UniqueConstraint(fields=["environment", "tenant", "grain_s", "at"], name="demand_once"),
        )
        indexes = (models.Index(fields=["environment", "grain_s", "at"], name="demand_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.tenant} {self.at} {self.asked}"


class RuleDemand(models.Model):
    """Requests that one rule bound in one span of time: of a tenant, or of all together when it is empty.

    What the tenants that are not listed asked of a rule is the difference to all together.
    """

    environment = models.CharField(max_length=64)
    tenant = models.CharField(max_length=200)
    #: Name of the quota.
    rule = models.CharField(max_length=64)
    #: Length of the span in seconds: 10, 60 or 3600.
    grain_s = models.IntegerField()
    #: Its start, a multiple of its length.
    at = models.DateTimeField()
    asked = models.BigIntegerField()
    #: Requests of these that this rule refused.
    refused = models.BigIntegerField()
    #: Requests that it let through as a shadow and would have refused otherwise.
    shadow = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "demand by rule"
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "tenant", "rule", "grain_s", "at"], name="rule_demand_once"
            ),
        )
        indexes = (models.Index(fields=["environment", "grain_s", "at"], name="rule_demand_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.tenant} {self.rule} {self.at} {self.asked}"


class KnownBudget(models.Model):
    """A budget as the worker last saw it in Redis, in case every pod that knows it has gone."""

    environment = models.CharField(max_length=64)
    #: The key of its counter in Redis, which has a digest of the tenant.
    key = models.CharField(max_length=400)
    #: The start of the period, in microseconds.
    began = models.BigIntegerField()
    #: The mark of the store, see ``lua/restore.lua`` of the agent.
    mark = models.CharField(max_length=20)
    amount = models.BigIntegerField()
    #: Spent in the period before the budget was made, or cleared: the ledger has it too.
    beyond = models.BigIntegerField()
    #: The store has lost its data a moment ago: what only the ledger knows is not put back yet.
    ledger_waits = models.BooleanField(default=False, db_default=False)
    #: An operator has cleared the counter since: all that the ledger has is of before.
    cleared = models.BooleanField(default=False, db_default=False)
    at = models.DateTimeField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "key"], name="known_budget_once"),)
        indexes = (models.Index(fields=["at"], name="known_budget_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.key}: {self.amount}"


#: The name of the advisory lock of an environment while calls are priced again or a counter is cleared: the
#: corrections that a clearing deletes are all about calls of before it.
CORRECTIONS_LOCK = "fuseboard.budget_corrections"


class BudgetCorrection(models.Model):
    """The higher cost of past calls by another price, until the worker has added it to a budget in Redis."""

    environment = models.CharField(max_length=64)
    #: The key of its counter in Redis, which has a digest of the tenant.
    key = models.CharField(max_length=400)
    #: The period, in microseconds.
    began = models.BigIntegerField()
    ends = models.BigIntegerField()
    #: Micro-USD; negative for less.
    amount = models.BigIntegerField()

    class Meta:
        indexes = (models.Index(fields=["environment", "key"], name="budget_correction_by_key"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.key}: {self.amount:+}"
