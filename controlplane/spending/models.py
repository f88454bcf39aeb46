"""Models and their prices, accounts and budgets. Only ``controlplane.editing.edits`` changes them."""

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from controlplane.spending.budget_rows import Account as Account
from controlplane.spending.budget_rows import Budget as Budget
from fuseboard.contract.models import MAX_ALIAS, MAX_ALIASES, MAX_LONG, MAX_PRICE
from fuseboard.contract.words import is_slug


def check_name(name: str) -> None:
    if not is_slug(name):
        raise ValidationError("Use 1 to 64 letters, digits, dots, dashes or underscores.")


class Model(models.Model):
    """A model that applications call by its name or by one of its aliases."""

    environment = models.ForeignKey("policies.Environment", on_delete=models.CASCADE, related_name="models")
    name = models.CharField(max_length=64, validators=[check_name])
    #: Other names in requests. No name or alias belongs to two models of an environment.
    aliases = ArrayField(models.CharField(max_length=MAX_ALIAS), default=list, blank=True)
    #: The name of the dependency its calls belong to; empty for that of the vendor's host.
    pool = models.CharField(max_length=64, blank=True, default="")
    #: Increases with every edit of the model or its prices.
    version = models.IntegerField(default=1)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["environment", "name"], name="model_once"),
            models.CheckConstraint(condition=Q(aliases__len__lte=MAX_ALIASES), name="model_aliases_few"),
        )

    def __str__(self) -> str:
        return self.name


#: The columns of a price in micro-USD per million tokens.
PRICES = ("input", "cached", "written", "output")
#: The prices of a call with more than ``long_above`` tokens of input.
LONG_PRICES = tuple(f"long_{column}" for column in PRICES)


class Price(models.Model):
    """The prices of a model from one instant on, until its next row begins.

    They are whole micro-USD per million tokens. A row that has begun is history: calls were charged by it.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="prices")
    #: A full minute.
    starts_at = models.DateTimeField()
    #: Input that the vendor neither read from its cache nor wrote to it.
    input = models.BigIntegerField()
    #: Input that was read from the vendor's cache, and input that was written to it.
    cached = models.BigIntegerField()
    written = models.BigIntegerField()
    output = models.BigIntegerField()
    #: The price of a call in a batch, as a part of all this.
    batch_percent = models.IntegerField(default=100)
    #: Calls with more tokens of input cost the long prices, for all their tokens; 0 for none.
    long_above = models.BigIntegerField(default=0)
    long_input = models.BigIntegerField(default=0)
    long_cached = models.BigIntegerField(default=0)
    long_written = models.BigIntegerField(default=0)
    long_output = models.BigIntegerField(default=0)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["model", "starts_at"], name="price_once"),
            *(
                models.CheckConstraint(
                    condition=Q(**{f"{column}__range": (0, MAX_PRICE)}), name=f"price_{column}_range"
                )
                for column in (*PRICES, *LONG_PRICES)
            ),
            models.CheckConstraint(condition=Q(batch_percent__range=(1, 100)), name="price_batch_range"),
            models.CheckConstraint(condition=Q(long_above__range=(0, MAX_LONG)), name="price_long_range"),
            models.CheckConstraint(
                condition=Q(long_above__gt=0) | Q(**dict.fromkeys(LONG_PRICES, 0)), name="price_long_or_none"
            ),
        )

    def __str__(self) -> str:
        return f"{self.model} {self.starts_at:%Y-%m-%d %H:%M}"
