"""The fields of a limit: each is described here once.

Checks, CSV columns, API schemas, forms, the options of ``fuseboard ctl`` and the table in docs/limits.md
are built from this. CONTRIBUTING.md says how to add a field.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from fuseboard.contract.words import MAX_LIMIT, Algorithm, Dimension, FailurePolicy, Period

#: 400 days, the longest window of a policy document.
MAX_WINDOW_S = 400 * 86_400
MAX_ENDPOINTS = 20
MAX_ENDPOINT = 200

#: Limits of tiers and tenants, and limits of callers: what only some limits have.
QUOTAS, CALLERS = "quotas", "callers"
_OWNERS = {QUOTAS: "quotas", CALLERS: "limits of callers"}


@dataclass(frozen=True, kw_only=True)
class _Field:
    name: str
    #: The algorithms whose limits have the field; empty for all.
    algorithms: tuple[Algorithm, ...] = ()
    #: The failure policies whose limits have it; empty for all.
    failure_policies: tuple[FailurePolicy, ...] = ()
    #: The limits that have it: ``quotas`` of tiers and tenants, limits of ``callers``; empty for all limits
    #: and templates.
    only: str = ""

    def applies_to(self, algorithm: str, failure_policy: str) -> bool:
        return (not self.algorithms or algorithm in self.algorithms) and (
            not self.failure_policies or failure_policy in self.failure_policies
        )


@dataclass(frozen=True, kw_only=True)
class Number(_Field):
    """A whole number."""

    least: int
    most: int
    unit: str
    #: ``None`` when a new limit needs a value.
    default: int | None


@dataclass(frozen=True, kw_only=True)
class Flag(_Field):
    default: bool


@dataclass(frozen=True, kw_only=True)
class Choice(_Field):
    """One word of an enumeration, or none when the default is empty."""

    words: type[StrEnum]
    default: str

    @property
    def values(self) -> tuple[str, ...]:
        return (*self.words,) if self.default else (*self.words, "")


@dataclass(frozen=True, kw_only=True)
class Choices(_Field):
    """Any words of an enumeration."""

    words: type[StrEnum]
    default: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Name(_Field):
    """A slug, or none when the default is empty."""

    default: str
    #: The word that stands for all of them; empty if none does.
    every: str = ""


@dataclass(frozen=True, kw_only=True)
class TimeZone(_Field):
    """A name of the time zone database."""

    default: str


@dataclass(frozen=True, kw_only=True)
class Patterns(_Field):
    """Several texts, in which ``*`` stands for any characters."""

    most: int
    longest: int
    default: tuple[str, ...] = ()


LimitField: TypeAlias = Number | Flag | Choice | Choices | Name | TimeZone | Patterns

FIELDS: tuple[LimitField, ...] = (
    Number(name="limit", least=0, most=MAX_LIMIT, unit="calls", default=None),
    Number(name="window_s", least=1, most=MAX_WINDOW_S, unit="seconds", default=None),
    Number(
        name="burst",
        least=1,
        most=MAX_LIMIT,
        unit="calls",
        default=1,
        algorithms=(Algorithm.TOKEN_BUCKET,),
    ),
    Choice(name="algorithm", words=Algorithm, default=Algorithm.TOKEN_BUCKET.value),
    Choice(name="failure_policy", words=FailurePolicy, default=FailurePolicy.FAIL_OPEN.value),
    Flag(name="shadow", default=False),
    Choice(name="period", words=Period, default="", algorithms=(Algorithm.FIXED_WINDOW,)),
    TimeZone(name="time_zone", default="UTC", algorithms=(Algorithm.FIXED_WINDOW,)),
    Name(name="measure", default="calls"),
    Choices(name="per", words=Dimension),
    Patterns(name="endpoints", most=MAX_ENDPOINTS, longest=MAX_ENDPOINT),
    Name(name="dependency", default="", only=QUOTAS),
    Number(name="warn_percent", least=0, most=100, unit="percent", default=0),
    Number(
        name="lease_above",
        least=0,
        most=MAX_LIMIT,
        unit="calls per second",
        default=0,
        algorithms=(Algorithm.SLIDING_WINDOW, Algorithm.TOKEN_BUCKET, Algorithm.FIXED_WINDOW),
    ),
    Number(
        name="reserved_percent",
        least=-1,
        most=100,
        unit="percent",
        default=-1,
        failure_policies=(FailurePolicy.RESERVED,),
    ),
    Name(name="service", default="", only=CALLERS, every="*"),
)


def fields_of(whose: str) -> tuple[LimitField, ...]:
    """The fields of the limits of ``QUOTAS`` or ``CALLERS``; empty for those of all limits."""
    return tuple(field for field in FIELDS if field.only in ("", whose))


BY_NAME = {field.name: field for field in FIELDS}

#: Fields that hold several values.
LISTS = frozenset(field.name for field in FIELDS if isinstance(field, Choices | Patterns))

#: How many calls, in which time, and how many at once. Every limit states them itself.
NUMBERS = ("limit", "window_s", "burst")


def allowed_values(field: LimitField) -> str:
    """``0 to 100 percent``, or whatever the field may be, in words."""
    match field:
        case Number():
            return f"{field.least:,} to {field.most:,} {field.unit}"
        case Flag():
            return "true or false"
        case Choice():
            return f"one of {', '.join(field.words)}{'' if field.default else '; or empty'}"
        case Choices():
            return f"any of {', '.join(field.words)}"
        case Name():
            every = f"; {field.every} for all" if field.every else ""
            return "a name" if field.default else f"a name{every}; or empty"
        case TimeZone():
            return "a time zone, like Europe/Berlin"
        case Patterns():
            return f"up to {field.most} patterns of {field.longest} characters"


def scope(field: LimitField) -> str:
    """The limits that have the field, in words; empty for all."""
    words = [*field.algorithms, *field.failure_policies]
    return ", ".join([*words, _OWNERS[field.only]] if field.only else words)
