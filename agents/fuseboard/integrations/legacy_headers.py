"""``X-RateLimit-*``, the headers that were usual before the draft of ``RateLimit``.

Their clients pace requests by them, so they are those of a limit of requests only: not of tokens, and not of
requests in progress.
"""

from math import ceil
from time import time

from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Algorithm
from fuseboard.decision import Decision, LimitStatus

CALLS = "calls"


def legacy_headers(decision: Decision, wait_s: int) -> list[tuple[str, str]]:
    """``wait_s`` is the ``Retry-After`` of a refusal. A pod alone does not know ``Remaining``."""
    requests = [
        limit
        for limit in decision.limits
        if limit.measure == CALLS and limit.algorithm is not Algorithm.CONCURRENCY and not limit.shadow
    ]
    if not requests:
        return []
    tightest = min(requests, key=lambda limit: (limit.name != decision.rule, _part_left(limit)))
    # Another limit refuses this request. Its client reads only these headers, and must wait as well.
    left = 0 if wait_s else tightest.remaining
    reset = time() + wait_s if wait_s else _full_again(tightest)
    headers = [("x-ratelimit-limit", str(tightest.limit)), ("x-ratelimit-reset", str(ceil(reset)))]
    if left is not None:
        headers.insert(1, ("x-ratelimit-remaining", str(max(0, left))))
    return headers


def _part_left(limit: LimitStatus) -> float:
    if limit.remaining is None:
        return 1.0
    return limit.remaining / limit.limit if limit.limit else 0.0


def _full_again(limit: LimitStatus) -> float:
    """When the whole limit is available again, in Unix time, if no more requests come."""
    now = time()
    if limit.period is None:
        return now + limit.window_ms / 1000
    return period_around(int(now * 1_000_000), limit.period, limit.time_zone)[1] / 1_000_000
