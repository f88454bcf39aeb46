"""The text of a breaker's key in Redis, and of an override's.

Breaker::

    state generation until_us since_us attempt successes cause [token=expires_us ...]

Text, not a hash: one MGET reads it together with the override and the limits, a key of the wrong type
reads as missing and does not fail the script, and an operator can read it with ``GET``. The Lua scripts
write it; this module reads it. A text that does not parse counts as no breaker, which the scripts treat
as closed with a new generation.

Override::

    mode expires_at_us revision
"""

import re

from msgspec import Struct

from fuseboard.contract.words import BreakerState, OverrideMode

_BREAKER = re.compile(r"^(closed|open|half_open) (\d+) (\d+) (\d+) (\d+) (\d+) (\S+)((?: \S+=\d+)*)$")
_OVERRIDE = re.compile(r"^(forced_open|forced_closed|metrics_only|disabled) (\d+) (\d+)$")


class StoredBreaker(Struct, frozen=True, kw_only=True):
    """One breaker, as Redis stores it. All times are store time in microseconds."""

    state: BreakerState
    #: Rises with every transition and override. Outcomes of an older generation change nothing.
    generation: int
    #: When an open breaker may probe, or when a half-open one gives up; 0 while closed.
    until_us: int
    since_us: int
    #: How often it has opened since it last recovered fully.
    attempt: int
    #: Successful probes since it became half-open.
    successes: int
    #: Why it is in this state: ``consecutive``, ``ratio``, ``slow``, ``probe_failed``, ``forced``, ...
    cause: str
    #: Half-open permits in use: token -> when the permit expires.
    permits: dict[str, int]


class StoredOverride(Struct, frozen=True, kw_only=True):
    mode: OverrideMode
    expires_at_us: int
    revision: int


def parse_breaker(text: str | None) -> StoredBreaker | None:
    """Read a breaker's key; ``None`` when it is missing or unreadable."""
    match = _BREAKER.match(text or "")
    if match is None:
        return None
    state, generation, until, since, attempt, successes, cause, permits = match.groups()
    leases = (pair.rpartition("=") for pair in permits.split())
    return StoredBreaker(
        state=BreakerState(state),
        generation=int(generation),
        until_us=int(until),
        since_us=int(since),
        attempt=int(attempt),
        successes=int(successes),
        cause=cause,
        permits={token: int(expires) for token, _, expires in leases},
    )


def parse_override(text: str | None) -> StoredOverride | None:
    """Read an override's key; ``None`` when it is missing or unreadable."""
    match = _OVERRIDE.match(text or "")
    if match is None:
        return None
    mode, expires_at, revision = match.groups()
    return StoredOverride(mode=OverrideMode(mode), expires_at_us=int(expires_at), revision=int(revision))
