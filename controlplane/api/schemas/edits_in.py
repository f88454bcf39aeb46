"""Requests. They are strict: no unknown fields, quoted numbers, fractions or control characters."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from ninja import Path, Schema
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, ConfigDict, Field

from controlplane.policies.models import MAX_MS, MAX_PART_MS
from controlplane.policies.nginx import MAX_GATEWAYS
from controlplane.validation import (
    LONGEST_REASON,
    PLAIN_KEY,
    SHORTEST_REASON,
    is_plain_key,
    is_printable,
)
from fuseboard.contract.limit_fields import MAX_ENDPOINT
from fuseboard.contract.policy import MAX_LATENCY_RISE, MAX_STORE_WAIT_MS, MAX_WAIT_MS
from fuseboard.contract.words import SLUG_PATTERN, is_subject


def one_line(text: str) -> str:
    if not is_printable(text):
        raise ValueError("Remove the line breaks and control characters.")
    return text


def lines(text: str) -> str:
    if not is_printable(text, lines=True):
        raise ValueError("Remove the control characters.")
    return text


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError("Use 1 to 200 characters without control characters.")
    return text


def digits(value: Any) -> Any:
    """Check a number in an address. pydantic would also accept blanks, signs and underscores."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9]{1,19}", value, re.ASCII):
        raise ValueError("Enter a whole number.")
    return value


def _word(value: Any) -> Any:
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("Enter true or false.")
    return value


def _moment(value: Any) -> Any:
    """Parse RFC 3339. pydantic would accept ten other forms, too, or in strict mode no text at all."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("Use a time with a time zone, like 2026-05-04T10:00:00Z.")
    found = datetime.fromisoformat(value)
    if not 2000 <= found.year <= 2999 or abs(found.utcoffset() or timedelta(0)) > timedelta(hours=15):
        raise ValueError("Use a time between the years 2000 and 3000.")
    return found.astimezone(UTC)


_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)


def _new_key(text: str) -> str:
    """Refuse a key that looks like another key."""
    if is_subject(text) and not is_plain_key(text):
        raise ValueError(PLAIN_KEY)
    return _subject(text)


Slug = Annotated[str, Field(pattern=SLUG_PATTERN, max_length=64)]
#: A part of the routers' prefix, where ninja does not find it.
Environment = Path[Slug]
Subject = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_subject)]
Reason = Annotated[str, Field(min_length=SHORTEST_REASON, max_length=LONGEST_REASON), AfterValidator(lines)]
Text = Annotated[str, Field(max_length=200), AfterValidator(one_line)]
#: A name that a list is filtered by; empty for any.
Match = Annotated[str, Field(max_length=300), AfterValidator(one_line)]
Title = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
Note = Annotated[str, Field(max_length=500), AfterValidator(lines)]
BreakerColumns = dict[Slug, Annotated[int, Field(ge=0, le=MAX_MS)]]
Endpoint = Annotated[str, Field(min_length=1, max_length=MAX_ENDPOINT), AfterValidator(one_line)]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]
NewOrVersion = Annotated[
    int | None,
    Field(
        ge=0,
        le=2**31 - 1,
        description="The version this edit is based on, or 0 for a new one; or send If-Match.",
    ),
]
PageSize = Annotated[
    int, BeforeValidator(digits), Field(ge=1, le=500, description="Maximum number of results.")
]
HeaderName = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9-]*$", max_length=64)]
Gateways = Annotated[
    int,
    BeforeValidator(digits),
    Field(ge=1, le=MAX_GATEWAYS, description="Number of gateways that share the limits."),
]
ExpectedVersion = Annotated[
    int,
    BeforeValidator(digits),
    Field(ge=1, le=2**31 - 1, description="The version this edit is based on; or send If-Match."),
]
RowId = Annotated[int, BeforeValidator(digits), Field(ge=1, le=2**62)]
ExpectedRevision = Annotated[
    int,
    BeforeValidator(digits),
    Field(ge=0, le=2**53, description="The revision this edit is based on; or send If-Match."),
]
Flag = Annotated[bool, BeforeValidator(_word)]
Moment = Annotated[AwareDatetime, BeforeValidator(_moment)]


class Strict(Schema):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ReasonIn(Strict):
    reason: Reason


_PARENT = "Its parent tenant, whose quotas its requests spend, too; empty for none."
Parent = Annotated[Subject | Literal[""], Field(description=_PARENT)]


class TenantIn(ReasonIn):
    key: Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_new_key)]
    tier: Slug
    title: Text = ""
    parent: Parent = ""


class TenantChange(ReasonIn):
    """A value that is left out stays as it is."""

    tier: Slug | None = None
    parent: Parent | None = None
    suspended: Annotated[bool | None, Field(description="A suspended tenant's requests are refused.")] = None
    expected_version: Version | None = None


PartTime = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_PART_MS,
        description="The longest time until the first part of a streamed answer, or between two parts,"
        " instead of the timeout; 0 for none.",
    ),
]
LatencyRise = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_LATENCY_RISE,
        description="Limits of calls at once (`concurrency`) fall while calls take longer than their lowest"
        " time by more than this percent; 0 for never. Only where limits follow: `vendor_floor_percent` of"
        " the environment is not 0.",
    ),
]
StoreWait = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_STORE_WAIT_MS,
        description="How long a call waits for Redis before its pod decides alone; 0 for the deadline of the"
        " fleet.",
    ),
]
Wait = Annotated[
    int,
    Field(
        ge=0,
        le=MAX_WAIT_MS,
        description="For how long an agent waits for a refusal that ends in time, unless the caller chooses.",
    ),
]


class TierIn(ReasonIn):
    name: Slug
    title: Text = ""
    priority: Annotated[int, Field(ge=0, le=100, description="Under overload, the lowest is shed first.")] = (
        50
    )
    wait_ms: Wait = 0


class DefaultTierIn(ReasonIn):
    tier: Slug


class TuningIn(ReasonIn):
    tuning: Annotated[
        dict[Slug, Annotated[int, Field(ge=0, le=2**53)]],
        Field(
            min_length=1,
            max_length=50,
            description="Timings of all agents of the fleet, and their `ipv6_prefix`, by name.",
        ),
    ]


_TICKET = (
    "The ticket that it belongs to: an address with http(s)://, or a key if FUSEBOARD_TICKET_URL is set."
    " An extension that leaves it out keeps the present one."
)


class ExtendIn(ReasonIn):
    expires_in_s: Annotated[
        int,
        Field(ge=1, le=86_400, description="Seconds from now: at most 86,400, or 900 with forced_closed."),
    ]
    ticket: Annotated[str | None, Field(max_length=300, description=_TICKET)] = None


class OverrideIn(ExtendIn):
    mode: Literal["forced_open", "forced_closed", "metrics_only", "disabled"]


class HoldIn(OverrideIn):
    """The name of ``OverrideIn`` in the deprecated operation."""


class BreakerPolicyIn(ReasonIn):
    """A value that is left out stays as it is."""

    breaker: Annotated[BreakerColumns, Field(description="Values of the breaker's policy, by name.")] = {}  # noqa: RUF012
    timeout_ms: Annotated[int | None, Field(ge=1, le=MAX_MS)] = None
    wait_ms: Wait | None = None
    first_part_ms: PartTime | None = None
    between_parts_ms: PartTime | None = None
    store_wait_ms: StoreWait | None = None
    latency_rise_percent: LatencyRise | None = None
    expected_version: Version | None = None


class DescriptionIn(ReasonIn):
    title: Text = ""
    owner: Text = ""
    fallback_note: Note = ""
    runbook: Slug | None = None
    expected_version: Version | None = None


class _NewToken(ReasonIn):
    name: Annotated[
        str,
        Field(min_length=1, max_length=200, description="The purpose of the token."),
        AfterValidator(one_line),
    ]
    expires_in_s: Annotated[int, Field(ge=60, le=366 * 86_400)]


_SERVICE = "Only pods of this service can use it; empty for any."
_PREFIX = "Only pods whose names begin like this can use it; empty for any."


class TokenIn(_NewToken):
    service: Annotated[str, Field(max_length=64, description=_SERVICE)] = ""
    name_prefix: Annotated[str, Field(max_length=63, description=_PREFIX)] = ""


class ApiTokenIn(_NewToken):
    scope: Annotated[
        Literal["read", "operate", "admin", "metrics"],
        Field(
            description="read; operate also controls breakers; admin can do everything."
            " metrics reads /metrics and can do nothing else."
        ),
    ]


class RotateIn(ReasonIn):
    expires_in_s: Annotated[
        int, Field(ge=60, le=366 * 86_400, description="Lifetime of the new token, in seconds.")
    ]
    overlap_s: Annotated[
        int, Field(ge=0, le=86_400, description="How long the old token stays valid, in seconds.")
    ] = 3600
