"""The words that both sides use: one enumeration per question, and the form of names."""

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

#: The largest whole number that Lua, JSON and Postgres all keep exactly.
MAX_LIMIT = 1_000_000_000

#: The environment when none is named.
DEFAULT_ENVIRONMENT = "production"

SLUG_PATTERN = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$"

#: Names of tiers, quotas, dependencies, servers, environments: 1 to 64 characters. In Python ``$`` also
#: matches before a final newline, ``\Z`` does not.
Slug = Annotated[str, Meta(pattern=SLUG_PATTERN.replace("$", r"\Z"), max_length=64)]

#: A slug whose length alone is checked while decoding: a pattern per name took most of the time of decoding a
#: heartbeat. Code that takes one from a client checks it with ``is_slug`` when it is new.
Name = Annotated[str, Meta(min_length=1, max_length=64)]

#: Characters that no text has, for a class of a pattern: controls, line separators, characters that turn the
#: direction of the text around them, and halves of surrogate pairs. Postgres stores no NUL and no half.
UNREADABLE = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"

#: Ids of tenants, users, keys: any text of the customer, 1 to 200 characters, no control characters. They are
#: hashed in Redis keys, so that they cannot choose a Cluster slot.
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

    #: No window ever has more than ``limit``. A ring of sub-buckets, the oldest counted in full.
    SLIDING_WINDOW = "sliding_window"
    #: GCRA in whole microseconds; ``burst`` calls at once, ``limit`` per window on average.
    TOKEN_BUCKET = "token_bucket"  # noqa: S105 - a word, not a secret
    #: ``limit`` per calendar ``period`` in a time zone. All of it may be spent at the end of one period.
    FIXED_WINDOW = "fixed_window"
    #: ``limit`` at once. Each slot expires after ``window_ms``, so that those of a dead pod become free.
    CONCURRENCY = "concurrency"


class Period(StrEnum):
    """The calendar periods, in the limit's time zone."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Dimension(StrEnum):
    """The part of a tenant that a limit counts separately: each user, each address and so on."""

    USER = "user"
    IP = "ip"
    API_KEY = "api_key"
    ENDPOINT = "endpoint"


class FailurePolicy(StrEnum):
    """The behaviour of a limit when the store cannot be asked."""

    #: Allow, and count locally for later.
    FAIL_OPEN = "fail_open"
    #: Refuse.
    FAIL_CLOSED = "fail_closed"
    #: Each pod spends limit / live pods.
    LOCAL_SHARE = "local_share"
    #: A fixed part is always spent locally, the rest only in Redis: never more than the limit.
    RESERVED = "reserved"


class Mode(StrEnum):
    """How a pod decides now."""

    #: Redis answers: limits are exact across the fleet.
    SHARED = "shared"
    #: Redis is unavailable: this pod spends its own share.
    LOCAL = "local"
    #: Redis is back: the shared part grows from 10 to 100 percent.
    RAMPING = "ramping"
    #: It simulates that Redis is slow or unavailable, because an admin asked for a drill.
    DRILL = "drill"


class DrillKind(StrEnum):
    """The fault that a pod simulates in a drill."""

    #: Redis refuses and drops every connection.
    GONE = "gone"
    #: Redis gets every question long after its deadline.
    SLOW = "slow"


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class OverrideMode(StrEnum):
    """A human's temporary setting of a breaker."""

    #: Refuse every call until it expires; the breaker then probes.
    FORCED_OPEN = "forced_open"
    #: Admit every call and record outcomes, but never trip. Must expire.
    FORCED_CLOSED = "forced_closed"
    #: Admit every call, record outcomes, and report what would have tripped.
    METRICS_ONLY = "metrics_only"
    #: Admit every call and record nothing. Must expire.
    DISABLED = "disabled"


class Reason(StrEnum):
    """Why a call was refused. The same in code, metrics, headers and pages."""

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
    BACKLOG_FULL = "backlog_full"


class Outcome(StrEnum):
    """How a permitted call ended, as its dependency's breaker counts it."""

    OK = "ok"
    FAILURE = "failure"
    #: It succeeded, but took longer than the breaker's ``slow_ms``.
    SLOW = "slow"
    #: It says nothing about the dependency: cancelled, never sent, or the caller's own mistake.
    NEUTRAL = "neutral"


class ConfigStatus(StrEnum):
    """The state of the newest configuration that a pod was offered."""

    APPLIED = "applied"
    REJECTED = "rejected"
    #: Nothing was offered yet: the pod decides by its built-in defaults.
    NONE = "none"


class ConfigSource(StrEnum):
    """Where the current configuration came from."""

    HTTP = "http"
    REDIS = "redis"
    DISK = "disk"
    BOOTSTRAP = "bootstrap"
    BUILT_IN = "built_in"


class CallTier(StrEnum):
    """How much a call matters to the pod that makes it. Each tier has its own slots of a bulkhead."""

    #: The request fails without it.
    CRITICAL = "critical"
    STANDARD = "standard"
    #: The request succeeds without it.
    OPTIONAL = "optional"


class WhenFull(StrEnum):
    """The fate of a call when no slot of its tier is free."""

    #: Refused at once.
    ABORT = "abort"
    #: It waits, if the queue has room.
    QUEUE = "queue"
    #: Refused at once, and expected to be: the caller uses its fallback, or nothing.
    DISCARD = "discard"


class Jitter(StrEnum):
    """How the wait before a retry is drawn from its maximum ``d``."""

    #: Always ``d``; for tests.
    NONE = "none"
    #: A wait from 0 to ``d``.
    FULL = "full"
    #: A wait from ``d / 2`` to ``d``.
    EQUAL = "equal"
    #: A wait from the base to three times the wait before.
    DECORRELATED = "decorrelated"


class LoadLevel(StrEnum):
    """How much of its traffic a pod sheds."""

    NORMAL = "normal"
    #: The lowest tiers.
    SHED = "shed"
    #: All but the highest tier.
    SHED_HARD = "shed_hard"
