"""The limits of the model of calls without Redis, and what its journal files must have."""

from collections import Counter
from pathlib import Path

from fuseboard.batching.demand import LimitRef
from fuseboard.contract import keys
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from fuseboard.without_redis import journal

#: Fleet time minus the monotonic clock.
OFFSET_S = 1_763_931_600

PER_MINUTE = Limit(name="requests", limit=1000, window_ms=60_000)
SHARED = Limit(name="tokens", limit=1000, window_ms=299_500, failure_policy=FailurePolicy.LOCAL_SHARE)
DAILY = Limit(
    name="daily",
    limit=1000,
    window_ms=86_400_000,
    algorithm=Algorithm.FIXED_WINDOW,
    period=Period.DAY,
    time_zone="Asia/Kolkata",
)
SHADOW = Limit(name="vendor", limit=5, window_ms=1_000, shadow=True)
ACME = ("production", "acme")
#: Each with the length of its spans and where one begins, worked out by hand: a day of India at 18:30.
REFS = (
    (LimitRef(PER_MINUTE, keys.tenant_quota(*ACME, "requests")), 60, 0),
    (LimitRef(SHARED, keys.tenant_quota(*ACME, "tokens", "GET /")), 300, 0),
    (LimitRef(DAILY, keys.tenant_quota("production", "beta", "daily")), 86_400, 66_600),
    (LimitRef(SHADOW, keys.vendor_limit("production", "openai", "vendor")), 60, 0),
)
SHARED_KEY = REFS[1][0].key
#: What a call is counted as: key of the limit, and what follows the "@".
Counts = Counter[tuple[str, str]]


def boot_of(segment: str) -> str:
    """What the names of all segments of one pod begin with."""
    return segment.rpartition("-")[0]


def by_limit(counts: Counts) -> Counter[str]:
    """What a file has at least: without room, it has no times."""
    sums: Counter[str] = Counter()
    for (limit, _), amount in counts.items():
        sums[limit] += amount
    return sums


def in_file(directory: Path, segment: str) -> Counter[str]:
    files = list(directory.glob(f"*.{segment}.journal"))
    assert files, "a file is forgotten before Redis has all of it"
    sums: Counter[str] = Counter()
    for key, amount in journal._counts_in(files[0]).totals.items():
        sums[key.decode().partition("@")[0]] += amount
    return sums
