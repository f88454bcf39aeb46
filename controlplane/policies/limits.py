"""The columns every limit has, of a tier, of a tenant or of a vendor."""

from typing import ClassVar

from django.db import models
from django.db.models import Q

from fuseboard.contract.words import MAX_LIMIT, Algorithm, FailurePolicy

#: 400 days, the contract's longest window.
MAX_WINDOW_S = 400 * 86_400


class LimitColumns(models.Model):
    """At most ``limit`` calls per ``window_s`` seconds."""

    name = models.CharField(max_length=64)
    algorithm = models.CharField(
        max_length=32,
        choices=[(word.value, word.value) for word in Algorithm],
        default=Algorithm.TOKEN_BUCKET,
    )
    limit = models.IntegerField()
    window_s = models.IntegerField()
    #: Calls that may be made at once; 1 for sliding windows.
    burst = models.IntegerField(default=1)
    failure_policy = models.CharField(
        max_length=32,
        choices=[(word.value, word.value) for word in FailurePolicy],
        default=FailurePolicy.FAIL_OPEN,
    )
    #: Decide and count, but never refuse.
    shadow = models.BooleanField(default=False)

    class Meta:
        abstract = True
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.CheckConstraint(
                condition=Q(algorithm__in=[word.value for word in Algorithm]),
                name="%(class)s_algorithm_known",
            ),
            models.CheckConstraint(
                condition=Q(failure_policy__in=[word.value for word in FailurePolicy]),
                name="%(class)s_failure_policy_known",
            ),
            models.CheckConstraint(condition=Q(limit__range=(0, MAX_LIMIT)), name="%(class)s_limit_range"),
            models.CheckConstraint(
                condition=Q(window_s__range=(1, MAX_WINDOW_S)), name="%(class)s_window_range"
            ),
            models.CheckConstraint(condition=Q(burst__range=(1, MAX_LIMIT)), name="%(class)s_burst_range"),
            models.CheckConstraint(
                condition=Q(burst=1) | ~Q(algorithm=Algorithm.SLIDING_WINDOW.value),
                name="%(class)s_burst_of_buckets_only",
            ),
            models.CheckConstraint(condition=~Q(name=""), name="%(class)s_name_not_empty"),
        )
