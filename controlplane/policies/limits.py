"""The columns of every limit: of a tier, a tenant, a vendor, a template or callers without a tenant."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import BigIntegerField, F, Q, Value
from django.db.models.functions import Cast, Greatest
from django.db.models.lookups import LessThanOrEqual

from fuseboard.contract.limit_fields import (
    FIELDS,
    MAX_ENDPOINT,
    MAX_ENDPOINTS,
    NUMBERS,
    QUOTAS,
    Number,
    fields_of,
)
from fuseboard.contract.words import Algorithm, Dimension, FailurePolicy, Period

#: Calls times seconds of a token bucket. Beyond this, its microseconds are no longer exact.
MAX_BUCKET = 2**53 // 1_000_000


def _ranges() -> Iterator[models.CheckConstraint]:
    for field in FIELDS:
        if isinstance(field, Number):
            yield models.CheckConstraint(
                condition=Q(**{f"{field.name}__range": (field.least, field.most)}),
                name=f"%(class)s_{field.name.removesuffix('_s')}_range",
            )


class LimitColumns(models.Model):
    """At most ``limit`` calls per ``window_s`` seconds; see ``fuseboard.contract.policy.Limit``."""

    name = models.CharField(max_length=64)
    algorithm = models.CharField(
        max_length=32,
        choices=[(word.value, word.value) for word in Algorithm],
        default=Algorithm.TOKEN_BUCKET,
    )
    limit = models.IntegerField()
    #: The lease of a slot for concurrency, and the nominal length of the period for a fixed window.
    window_s = models.IntegerField()
    #: Calls that may be made at once; 1 for all but token buckets.
    burst = models.IntegerField(default=1)
    failure_policy = models.CharField(
        max_length=32,
        choices=[(word.value, word.value) for word in FailurePolicy],
        default=FailurePolicy.FAIL_OPEN,
    )
    #: Decide and count, but never refuse.
    shadow = models.BooleanField(default=False)
    #: The period of a fixed window; empty for all others.
    period = models.CharField(
        max_length=8, choices=[(word.value, word.value) for word in Period], blank=True, default=""
    )
    time_zone = models.CharField(max_length=64, default="UTC")
    measure = models.CharField(max_length=64, default="calls")
    per = ArrayField(models.CharField(max_length=16), default=list, blank=True)
    endpoints = ArrayField(models.CharField(max_length=MAX_ENDPOINT), default=list, blank=True)
    warn_percent = models.IntegerField(default=0)
    lease_above = models.IntegerField(default=0)
    #: The part of a ``reserved`` limit that pods spend without Redis; -1 for the fleet default.
    reserved_percent = models.IntegerField(default=-1, db_default=-1)

    #: The owner of the limits, as in ``limit_fields``. They also have the fields of this owner.
    whose: ClassVar[str] = ""

    class Meta:
        abstract = True
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            *_ranges(),
            models.CheckConstraint(
                condition=Q(algorithm__in=[word.value for word in Algorithm]),
                name="%(class)s_algorithm_known",
            ),
            models.CheckConstraint(
                condition=Q(failure_policy__in=[word.value for word in FailurePolicy]),
                name="%(class)s_failure_policy_known",
            ),
            models.CheckConstraint(
                condition=Q(burst=1) | Q(algorithm=Algorithm.TOKEN_BUCKET.value),
                name="%(class)s_burst_of_buckets_only",
            ),
            models.CheckConstraint(condition=~Q(name=""), name="%(class)s_name_not_empty"),
            models.CheckConstraint(
                condition=Q(
                    algorithm=Algorithm.FIXED_WINDOW.value, period__in=[word.value for word in Period]
                )
                | (~Q(algorithm=Algorithm.FIXED_WINDOW.value) & Q(period="")),
                name="%(class)s_period_of_fixed_windows",
            ),
            models.CheckConstraint(
                condition=~Q(algorithm=Algorithm.TOKEN_BUCKET.value)
                | Q(
                    LessThanOrEqual(
                        Cast(Greatest(F("limit"), F("burst")), BigIntegerField())
                        * Cast(F("window_s"), BigIntegerField()),
                        Value(MAX_BUCKET),
                    )
                ),
                name="%(class)s_bucket_exact",
            ),
            models.CheckConstraint(
                condition=Q(per__contained_by=[word.value for word in Dimension]),
                name="%(class)s_per_known",
            ),
            models.CheckConstraint(
                condition=Q(endpoints__len__lte=MAX_ENDPOINTS), name="%(class)s_endpoints_few"
            ),
            models.CheckConstraint(
                condition=~Q(measure="") & ~Q(time_zone=""), name="%(class)s_measure_and_zone_not_empty"
            ),
        )


class FollowingColumns(LimitColumns):
    """A limit that can follow a template of its environment and override some of its values.

    Its row has all values, so that code that reads a limit does not depend on templates.
    """

    #: Name of the template; empty for none.
    template = models.CharField(max_length=64, blank=True, default="", db_default="")
    #: Names of the columns that override the template.
    own = ArrayField(models.CharField(max_length=32), default=list, db_default=[], blank=True)

    class Meta(LimitColumns.Meta):
        abstract = True
        constraints = (
            *LimitColumns.Meta.constraints,
            models.CheckConstraint(
                condition=~Q(template="") | Q(own__len=0), name="%(class)s_own_beside_a_template"
            ),
        )


class QuotaColumns(FollowingColumns):
    """A limit on requests of tenants: all of them, or those to one dependency."""

    #: Name of the dependency it is counted for; empty for requests to the service itself.
    dependency = models.CharField(max_length=64, blank=True, default="")

    whose: ClassVar[str] = QUOTAS

    class Meta(FollowingColumns.Meta):
        abstract = True


def _column_default(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


#: Columns that an edit may leave out, and their values in a new limit.
OPTIONAL: dict[str, Any] = {
    field.name: _column_default(field.default) for field in FIELDS if field.name not in NUMBERS
}

#: The columns of a new vendor limit, unless the edit gives others.
VENDOR_DEFAULTS: dict[str, Any] = {
    "algorithm": Algorithm.SLIDING_WINDOW,
    "failure_policy": FailurePolicy.RESERVED,
    "shadow": False,
}

#: The columns of a new limit on callers without a tenant: addresses, logins, and keys. It protects
#: against abuse, so it must also refuse while Redis is down.
SUBJECT_DEFAULTS: dict[str, Any] = {"failure_policy": FailurePolicy.LOCAL_SHARE}

#: The failure policy of a new budget of a tenant or a tier: without Redis, pods divide what is left of it.
BUDGET_POLICY = FailurePolicy.LOCAL_SHARE

#: The columns of a limit that follows no template.
ALONE: dict[str, Any] = {"template": "", "own": []}

#: The columns of a template. Each limit states for itself whose calls it counts.
VALUES = tuple(field.name for field in FIELDS if not field.only)


@lru_cache
def columns_for(whose: str) -> tuple[str, ...]:
    """Return the columns of the limits of ``whose``, as in ``limit_fields``."""
    return tuple([field.name for field in fields_of(whose)])


def columns_of(row: LimitColumns) -> dict[str, Any]:
    """Return the columns of a row without name and owner. Rare columns are left out at their default."""
    columns = {name: getattr(row, name) for name in ("algorithm", "limit", "window_s", "burst")}
    columns |= {"failure_policy": row.failure_policy, "shadow": row.shadow}
    rare = set(OPTIONAL).intersection(columns_for(row.whose)) - columns.keys()
    columns |= {name: value for name in sorted(rare) if (value := getattr(row, name)) != OPTIONAL[name]}
    if template := getattr(row, "template", ""):
        columns |= {"template": template, "own": list(row.own)}  # type: ignore[attr-defined]
    return columns


#: Columns of ``OPTIONAL`` that are always written.
_ALWAYS = ("algorithm", "failure_policy", "shadow")


def plain_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """Return columns in the form of ``columns_of``: rare ones are left out at their default."""
    if not columns.get("template"):
        columns = {name: value for name, value in columns.items() if name not in ALONE}
    return {
        name: value
        for name, value in {**{name: OPTIONAL[name] for name in _ALWAYS}, "burst": 1, **columns}.items()
        if name in _ALWAYS or name not in OPTIONAL or value != OPTIONAL[name]
    }


def full_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return all columns of a limit, including those left out at their default."""
    return {**OPTIONAL, **ALONE, "burst": 1, **columns}


def set_columns(row: LimitColumns, columns: Mapping[str, Any]) -> None:
    """Set all columns that the limit has, including those left out at their default."""
    own = columns_for(row.whose)
    for column, value in full_columns(columns).items():
        # A limit lacks some columns of other owners: the dependency of a vendor's limit is its owner.
        if column in own or column not in OPTIONAL:
            setattr(row, column, value)


def followed(columns: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a limit with the values of ``template``, except those it overrides."""
    full, values = full_columns(columns), full_columns(template)
    return plain_columns(full | {name: values[name] for name in VALUES if name not in full["own"]})


def own_columns(given: Iterable[str]) -> list[str]:
    """Return the given names that a template has, in a fixed order."""
    names = set(given)
    return [name for name in VALUES if name in names]


def columns_of_edit(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that an edit must give to create this limit, without values of its template."""
    if not columns.get("template"):
        return columns
    full = full_columns(columns)
    rest = {name: value for name, value in columns.items() if name not in VALUES and name != "own"}
    return {"template": rest.pop("template"), **{name: full[name] for name in full["own"]}, **rest}
