"""How long to wait before a call is made again."""

from random import Random

from fuseboard.calling.classification import Verdict
from fuseboard.contract.protection import Retry
from fuseboard.contract.words import Jitter

#: Powers of two beyond this one overflow long before they matter.
MAX_EXPONENT = 30
#: Pods that were asked to wait for the same time come back within this part of it.
SPREAD = 0.1


def wait_s(retry: Retry, verdict: Verdict, attempt: int, before_s: float, random: Random) -> float:
    """The wait after the attempt with this number failed. ``before_s`` is the wait before that attempt.

    At least what the vendor asked for, and a little more, so that not all pods come back at once.
    """
    at_once = verdict.status == 408 or verdict.code == "timeout"
    drawn = 0.0 if at_once else _drawn_s(retry, verdict, attempt, before_s, random)
    asked_ms = verdict.cooldown_ms
    if not asked_ms and verdict.status == 429:
        asked_ms = retry.default_retry_after_ms
    return max(drawn, asked_ms / 1000 * random.uniform(1.0, 1.0 + SPREAD))


def _drawn_s(retry: Retry, verdict: Verdict, attempt: int, before_s: float, random: Random) -> float:
    # A vendor that is overloaded gets twice the time.
    base_s = retry.base_ms / 1000 * (2 if verdict.status == 529 else 1)
    cap_s = retry.cap_ms / 1000
    most_s: float = min(cap_s, base_s * 2 ** min(attempt - 1, MAX_EXPONENT))
    if retry.jitter is Jitter.NONE:
        return most_s
    if retry.jitter is Jitter.EQUAL:
        return most_s / 2 + random.uniform(0.0, most_s / 2)
    if retry.jitter is Jitter.DECORRELATED:
        return min(cap_s, random.uniform(base_s, max(base_s, before_s * 3)))
    return random.uniform(0.0, most_s)
