"""The series that exist: the kinds of entities that are measured, and the fields of each.

A row stores its fields in the order of this list. A new field goes to the end of its kind: rows that are
older have no value for it, which reads as unknown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from hashlib import sha256

from fuseboard.contract.sync import CALL_EDGES_MS, LATENCY_EDGES_US
from fuseboard.contract.words import CallTier

#: Length of the shortest span, and the number of them in an hour.
SPAN_S = 10
SPANS = 3600 // SPAN_S
MINUTES = 60

#: The largest stored value of one span: the sum of six of them is still an ``integer`` of Postgres.
MAX_IN_SPAN = (2**31 - 1) // 6


class How(StrEnum):
    """How values are combined: first of gateways, then of spans."""

    #: Counts: added, added.
    SUM = "sum"
    #: A measurement of a pod: the highest, the highest.
    PEAK = "peak"
    #: Things that gateways share among them: added, then the highest.
    LEVEL = "level"


@dataclass(frozen=True)
class Field:
    name: str
    how: How = How.SUM


# Each kind is one object: its hash is in the path of every value that a gateway counts.
@dataclass(frozen=True, eq=False)
class Kind:
    #: The number that rows store.
    number: int
    name: str
    fields: tuple[Field, ...]
    #: Gateways list every one that counts something, so one that is not listed counted 0.
    complete: bool = False
    #: Whether hours are kept. Names of pods change with each deployment, so their hours are not.
    hourly: bool = True

    @property
    def width(self) -> int:
        return len(self.fields)

    @cached_property
    def places(self) -> dict[str, int]:
        return {one.name: place for place, one in enumerate(self.fields)}

    def place(self, field: str) -> int:
        """Raises ``ValueError``, naming the fields that there are."""
        if field not in self.places:
            names = ", ".join(self.places)
            raise ValueError(f"A series of kind {self.name} has no field {field!r}. Use {names}.")
        return self.places[field]


def _counts(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name) for name in names)


#: Answers of Redis by time: up to each edge in microseconds, and longer.
LATENCY_FIELDS = (*(f"redis_to_{edge}_us" for edge in LATENCY_EDGES_US), "redis_longer")
#: Calls to a dependency by time, in milliseconds.
CALL_FIELDS = (*(f"took_to_{edge}_ms" for edge in CALL_EDGES_MS), "took_longer")
#: Calls that a tier of a bulkhead refused: its slots and its queue were full, or they waited too long.
FULL_FIELDS = tuple(f"{tier.value}_full" for tier in CallTier)
TIMED_OUT_FIELDS = tuple(f"{tier.value}_timed_out" for tier in CallTier)
#: First attempts of calls that may be repeated; attempts after them; calls that one of these saved; retries
#: that the budget refused; and calls whose last allowed attempt failed. The names are those of ``CallLoad``.
RETRY_FIELDS = ("first_calls", "retries", "helped", "no_budget", "exhausted")

FLEET = Kind(
    1,
    "fleet",
    (
        *_counts("requests", "refused", "unknown_tenants", "decided_locally", "calls", "failures", "blocked"),
        *_counts("redis_asked", "redis_timeouts", "redis_errors", *LATENCY_FIELDS),
        Field("pods_local", How.LEVEL),
    ),
    complete=True,
)
DEPENDENCY = Kind(
    2,
    "dependency",
    _counts(
        *("ok", "failures", "slow", "neutral", "blocked", "over_limit", "refused_else", *CALL_FIELDS),
        *(*FULL_FIELDS, *TIMED_OUT_FIELDS, *RETRY_FIELDS),
    ),
    complete=True,
)
POD = Kind(
    3,
    "pod",
    (
        *_counts("requests", "refused", "calls", "failures", "decided_locally", "redis_asked"),
        *_counts("redis_failed"),
        *(Field(name, How.PEAK) for name in ("pressure", "cpu", "in_flight")),
    ),
    hourly=False,
)
TENANT = Kind(4, "tenant", _counts("asked", "refused"))
#: Named by the tenant, empty for all together, and then by the rule.
RULE = Kind(5, "rule", _counts("asked", "refused", "shadow"))

KINDS = (FLEET, DEPENDENCY, POD, TENANT, RULE)
#: In rows of its own, see ``tenant_hours``: no frame has it.
TENANT_HOUR = Kind(6, "tenant_hour", _counts("asked", "refused"))
BY_NAME = {kind.name: kind for kind in (*KINDS, TENANT_HOUR)}

#: Rows of one hour: 100,000 tenants are about 390 in each. Stored rows depend on it.
TENANT_PARTS = 256
#: The part of the row about the hour itself.
ABOUT_HOUR = -1


def tenant_number(name: str) -> int:
    """The number of a tenant in hourly rows: 64 bits, so that no two of a million tenants are alike."""
    return int.from_bytes(sha256(name.encode(errors="replace")).digest()[:8], signed=True)


def tenant_part(number: int) -> int:
    return number % TENANT_PARTS


def combine(how: How, values: Iterable[int]) -> int:
    """The values of several gateways for one span."""
    return max(values) if how is How.PEAK else sum(values)


def roll_up(how: How, values: Sequence[int | None]) -> int | None:
    """The values of several spans; ``None`` if all of them are unknown."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known) if how is How.SUM else max(known)
