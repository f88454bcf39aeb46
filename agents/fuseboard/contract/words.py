"""The words both sides use: one enumeration per question, and the shape of names."""

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

#: The largest whole number that Lua, JSON and Postgres all keep exactly.
MAX_LIMIT = 1_000_000_000

#: The environment that everything belongs to where none is named.
DEFAULT_ENVIRONMENT = "production"

SLUG_PATTERN = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"

#: Names of tiers, quotas, dependencies, servers, environments: 1 to 64 characters. In Python ``$``
#: also matches before a final newline, ``\Z`` does not.
Slug = Annotated[str, Meta(pattern=SLUG_PATTERN.replace("$", r"\Z"), max_length=64)]

#: A slug of which only the length is checked while decoding: a pattern per name made up most of a
#: beat's decoding. Whoever takes one from a stranger asks ``is_slug`` when it is new to him.
Name = Annotated[str, Meta(min_length=1, max_length=64)]

#: Ids of tenants, users, keys: whatever the customer has, 1 to 200 characters, no controls.
#: They are hashed in Redis keys, so that nothing in them can steer a cluster slot.
SUBJECT_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\ud800-\udfff]+$"
Subject = Annotated[str, Meta(min_length=1, max_length=200)]

_slug = re.compile(SLUG_PATTERN)
_subject = re.compile(SUBJECT_PATTERN)


def is_slug(text: str) -> bool:
    """Whether ``text`` may name a tier, quota, dependency, server or environment."""
    return _slug.fullmatch(text) is not None


def is_subject(text: str) -> bool:
    """Whether ``text`` may be the id of a tenant, a user or a key."""
    return len(text) <= 200 and _subject.fullmatch(text) is not None


class Algorithm(StrEnum):
    """How a limit counts."""

    #: Never more than ``limit`` in *any* window; a ring of sub-buckets, the oldest in full.
    SLIDING_WINDOW = "sliding_window"
    #: GCRA in whole microseconds; ``burst`` calls at once, ``limit`` per window on average.
    TOKEN_BUCKET = "token_bucket"  # noqa: S105 - a word, not a secret
    #: ``limit`` per calendar ``period`` in a time zone; all of it may be spent at the edge.
    FIXED_WINDOW = "fixed_window"
    #: ``limit`` at once; each slot is a lease of ``window_ms``, so that a dead pod frees its own.
    CONCURRENCY = "concurrency"


class Period(StrEnum):
    """The calendar's windows, in the limit's time zone."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Dimension(StrEnum):
    """What a limit counts apart, below the tenant: each user, each address, ... has its own counter."""

    USER = "user"
    IP = "ip"
    API_KEY = "api_key"
    ENDPOINT = "endpoint"


class FailurePolicy(StrEnum):
    """What a limit does when the store cannot be asked."""

    #: Allow, and count locally for later.
    FAIL_OPEN = "fail_open"
    #: Refuse.
    FAIL_CLOSED = "fail_closed"
    #: Each server spends limit / live servers.
    LOCAL_SHARE = "local_share"
    #: A standing fraction is always spent locally, the rest only in Redis: never more than the limit.
    RESERVED = "reserved"


class Mode(StrEnum):
    """How a server decides right now."""

    #: Redis answers: limits are exact over the fleet.
    SHARED = "shared"
    #: Redis is gone: this server spends its own share.
    LOCAL = "local"
    #: Redis is back: the shared part grows from 10 to 100 percent.
    RAMPING = "ramping"
    #: It pretends that Redis is slow or gone, because an admin asked it to.
    DRILL = "drill"


class DrillKind(StrEnum):
    """What a server pretends in a drill."""

    #: Redis refuses and drops every connection.
    GONE = "gone"
    #: Redis gets every question long after its deadline.
    SLOW = "slow"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class OverrideMode(StrEnum):
    """A human's temporary hold on a breaker."""

    #: Refuse every call until it expires; the breaker then probes.
    FORCED_OPEN = "forced_open"
    #: Admit every call and record outcomes, but never trip; must expire.
    FORCED_CLOSED = "forced_closed"
    #: Admit every call, record outcomes, say what would have tripped.
    METRICS_ONLY = "metrics_only"
    #: Admit every call and record nothing; must expire.
    DISABLED = "disabled"


class Reason(StrEnum):
    """Why a call was refused. Used alike in code, metrics, headers and pages."""

    QUOTA = "quota"
    VENDOR_LIMIT = "vendor_limit"
    CONCURRENCY = "concurrency"
    COOLING_DOWN = "cooling_down"
    BREAKER_OPEN = "breaker_open"
    PROBE_BUSY = "probe_busy"
    FORCED_OPEN = "forced_open"
    SUSPENDED = "suspended"
    BULKHEAD_FULL = "bulkhead_full"
    QUEUE_TIMEOUT = "queue_timeout"
    SHED = "shed"
    LOCAL_RATE = "local_rate"
    BUDGET_SPENT = "budget_spent"
    STORE_UNAVAILABLE = "store_unavailable"


class Outcome(StrEnum):
    """How a permitted call ended, as its dependency's breaker counts it."""

    OK = "ok"
    FAILURE = "failure"
    #: It succeeded, but took longer than the breaker's ``slow_ms``.
    SLOW = "slow"
    #: It says nothing about the dependency: cancelled, never sent, or the caller's own mistake.
    NEUTRAL = "neutral"


class ConfigStatus(StrEnum):
    """What became of the newest configuration a server was offered."""

    APPLIED = "applied"
    REJECTED = "rejected"
    #: Nothing was offered yet: the server decides by its built-in defaults.
    NONE = "none"


class ConfigSource(StrEnum):
    """Where the configuration in force came from."""

    HTTP = "http"
    REDIS = "redis"
    DISK = "disk"
    BOOTSTRAP = "bootstrap"
    BUILT_IN = "built_in"
