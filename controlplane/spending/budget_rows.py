"""Accounts at vendors, and budgets. Only ``controlplane.editing.edits`` changes them."""

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from fuseboard.contract.budgets import MAX_BUDGET, MAX_BUDGET_NAME, MAX_HOSTS, MAX_POOLS, AtSpent
from fuseboard.contract.words import Period, is_slug

#: Kinds of owners of a budget; each is a column with the name of the owner.
OWNERS = ("account", "dependency", "tier", "tenant")


def check_budget_name(name: str) -> None:
    if not is_slug(name) or len(name) > MAX_BUDGET_NAME:
        raise ValidationError(f"Use 1 to {MAX_BUDGET_NAME} letters, digits, dots, dashes or underscores.")


class Account(models.Model):
    """An account at a vendor: its key and its bill."""

    environment = models.ForeignKey("policies.Environment", on_delete=models.CASCADE, related_name="accounts")
    name = models.CharField(max_length=64, validators=[check_budget_name])
    hosts = ArrayField(models.CharField(max_length=253), default=list, blank=True)
    #: The names of the dependencies that are called with it. No dependency is a pool of two accounts.
    pools = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    #: Increases with every edit.
    version = models.IntegerField(default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "name"], name="account_once"),
            models.CheckConstraint(condition=Q(hosts__len__lte=MAX_HOSTS), name="account_hosts_few"),
            models.CheckConstraint(condition=Q(pools__len__lte=MAX_POOLS), name="account_pools_few"),
        )

    def __str__(self) -> str:
        return self.name


class Budget(models.Model):
    """How much of a cost one owner may spend in a calendar period."""

    environment = models.ForeignKey("policies.Environment", on_delete=models.CASCADE, related_name="budgets")
    name = models.CharField(max_length=MAX_BUDGET_NAME, validators=[check_budget_name])
    #: The name of one owner; the other three are empty.
    account = models.CharField(max_length=64, blank=True, default="")
    dependency = models.CharField(max_length=64, blank=True, default="")
    tier = models.CharField(max_length=64, blank=True, default="")
    tenant = models.CharField(max_length=200, blank=True, default="")
    amount = models.BigIntegerField()
    measure = models.CharField(max_length=64, default="micro_usd")
    period = models.CharField(max_length=8, choices=[(period.value, period.value) for period in Period])
    time_zone = models.CharField(max_length=64, default="UTC")
    #: The budget of its tier that the budget of a tenant replaces; empty for none.
    instead_of = models.CharField(max_length=MAX_BUDGET_NAME, blank=True, default="")
    warn_percent = models.IntegerField(default=80)
    at_100 = models.CharField(
        max_length=16, choices=[(word.value, word.value) for word in AtSpent], default=AtSpent.STOP.value
    )
    #: The amount until ``raised_until``; both are null without one.
    raised_to = models.BigIntegerField(null=True, blank=True)
    raised_until = models.DateTimeField(null=True, blank=True)
    version = models.IntegerField(default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "name"], name="budget_once"),
            models.CheckConstraint(
                condition=Q(amount__range=(0, MAX_BUDGET))
                & (Q(raised_to__isnull=True) | Q(raised_to__range=(0, MAX_BUDGET))),
                name="budget_amount_range",
            ),
            models.CheckConstraint(condition=Q(warn_percent__range=(0, 100)), name="budget_warn_range"),
            models.CheckConstraint(
                condition=Q(raised_to__isnull=True, raised_until__isnull=True)
                | Q(raised_to__isnull=False, raised_until__isnull=False),
                name="budget_raised_until",
            ),
            models.CheckConstraint(
                condition=Q(
                    *[
                        ~Q(**{owner: ""}) & Q(**dict.fromkeys([o for o in OWNERS if o != owner], ""))
                        for owner in OWNERS
                    ],
                    _connector=Q.OR,
                ),
                name="budget_one_owner",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def applies(self) -> int:
        """The amount that pods enforce. A raise lowers no amount that was set above it meanwhile."""
        return max(self.amount, self.raised_to or 0)

    @property
    def owner(self) -> tuple[str, str]:
        """The kind and the name of its owner."""
        return next((kind, getattr(self, kind)) for kind in OWNERS if getattr(self, kind))
