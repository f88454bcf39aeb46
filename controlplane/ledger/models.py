"""The tables of the ledger. People enter invoices. ``controlplane.ledger.rows`` adds to the others."""

from django.db import models

from fuseboard.contract.budgets import MAX_BUDGET


class Amounts(models.Model):
    """The usage of calls. ``fuseboard.contract.usage.UsageRow`` describes each number."""

    calls = models.BigIntegerField()
    fresh = models.BigIntegerField()
    cached = models.BigIntegerField()
    written = models.BigIntegerField()
    output = models.BigIntegerField()
    micro_usd = models.BigIntegerField()
    wasted = models.BigIntegerField()
    wasted_micro_usd = models.BigIntegerField()
    estimated = models.BigIntegerField()
    estimated_micro_usd = models.BigIntegerField()
    unpriced = models.BigIntegerField()
    saved_micro_usd = models.BigIntegerField()

    class Meta:
        abstract = True


class Whose(models.IntegerChoices):
    SERVICE = 1
    TENANT = 2


class UsageHour(Amounts):
    """Calls of an hour to one model: of each service, and again of each tenant.

    The tenants are all of them at first. Later, only the most expensive ones have rows, and the rest is in
    the row with an empty name.
    """

    environment = models.CharField(max_length=64)
    #: The start of the hour.
    at = models.DateTimeField()
    whose = models.SmallIntegerField(choices=Whose.choices)
    #: The service or the tenant.
    name = models.CharField(max_length=200, blank=True)
    model = models.CharField(max_length=200, blank=True)
    dependency = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "whose", "at", "name", "model", "dependency"], name="usage_hour_once"
            ),
        )
        indexes = (models.Index(fields=["at"], name="usage_hour_by_time"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.name} {self.model} {self.at}"


class UsageDay(Amounts):
    """Calls of a day in UTC to one model, of each tenant. Without a tenant, the name is empty."""

    environment = models.CharField(max_length=64)
    day = models.DateField()
    tenant = models.CharField(max_length=200, blank=True)
    model = models.CharField(max_length=200, blank=True)
    dependency = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=["environment", "day", "tenant", "model", "dependency"], name="usage_day_once"
            ),
        )
        indexes = (models.Index(fields=["environment", "tenant", "day"], name="usage_day_by_tenant"),)

    def __str__(self) -> str:
        return f"{self.environment}/{self.tenant} {self.model} {self.day}"


class UsageTotal(Amounts):
    """All calls of a day in UTC. What many views read needs no sum of the thousands of rows of its day."""

    environment = models.CharField(max_length=64)
    day = models.DateField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=["environment", "day"], name="usage_total_once"),)

    def __str__(self) -> str:
        return f"{self.environment} {self.day}"


class Invoice(models.Model):
    """The total of a vendor for an account and a month, as a person entered it."""

    environment = models.CharField(max_length=64)
    account = models.CharField(max_length=64)
    #: The first day of the month.
    month = models.DateField()
    micro_usd = models.BigIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "account", "month"], name="invoice_once"),
            models.CheckConstraint(
                condition=models.Q(micro_usd__range=(0, MAX_BUDGET)), name="invoice_range"
            ),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.account} {self.month:%Y-%m}"


class UsageReceipt(models.Model):
    """The last part of a process that the ledger has, so that no part counts twice."""

    environment = models.CharField(max_length=64)
    server = models.CharField(max_length=64)
    boot = models.CharField(max_length=64)
    number = models.BigIntegerField()
    #: When its last part came.
    at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "server", "boot"], name="usage_receipt_once"),
        )

    def __str__(self) -> str:
        return f"{self.environment}/{self.server} {self.boot}: {self.number}"
