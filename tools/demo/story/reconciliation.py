"""Redis is killed; what pods allowed meanwhile is in the report of the outage, call by call."""

import os
import re
import signal
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from controlplane import embedded
from fuseboard.contract import keys
from fuseboard.contract.offline_fields import read_part
from fuseboard.contract.words import Mode
from tools.demo.scenario import STORYTELLER
from tools.demo.seed import ENVIRONMENT
from tools.demo.story.chapter import Chapter, CheckFailed, slowest
from tools.demo.story.redis import LIMITS

_AWAY_S = 4.0
#: The last span of the outage lasts for up to a minute, and the worker copies every 30 s while pods change
#: their modes.
_COPIED_S = 120


def reconciled(chapter: Chapter) -> str:
    """What the page says of a tenant is what its pods reported to Redis, and includes every local answer.

    Redis has no disk in the demo. What pods reported in the same span before the kill is lost there, and is
    on the page as far as the worker had copied it.
    """
    with chapter.watch("search", STORYTELLER) as watch:
        began_s = time.time()
        lost = _reported(chapter, (began_s, began_s + _AWAY_S))
        os.kill(embedded.look_up(LIMITS, folder=chapter.demo.folder).server, signal.SIGKILL)
        killed = time.monotonic()
        watch.first("decide locally", lambda a: a.mode == Mode.LOCAL, since=killed, within_s=10)
        time.sleep(_AWAY_S)
        embedded.revive(LIMITS, folder=chapter.demo.folder)
        back = time.monotonic()
        shared = watch.first("share limits", lambda a: a.mode == Mode.SHARED, since=back, within_s=20)
        outage = (began_s, time.time())
    answers = [answer for each in watch.answers.values() for answer in each if answer.sent_at >= killed]
    alone = sum(answer.mode == Mode.LOCAL and answer.status == 200 for answer in answers)
    copied_ms = chapter.until(
        "the report has what pods reported",
        lambda: _is_reported(chapter, outage, _reported(chapter, outage), lost),
        within_s=_COPIED_S,
    )
    reported = _reported(chapter, outage)
    if not reported or max(reported.values()) < alone:
        raise CheckFailed(f"pods answered {alone} calls by themselves and reported {reported}")
    counted = ", ".join(f"{amount} of {rule}" for rule, amount in sorted(reported.items()))
    return (
        f"{alone} calls of {STORYTELLER} answered without Redis; its limits counted {counted}; the page says"
        f" the same, and at most {sum(lost.values())} more that Redis lost, {copied_ms / 1000:.0f} s after"
        f" all pods shared ({slowest(shared)} after Redis was back)"
    )


def _reported(chapter: Chapter, outage: tuple[float, float]) -> dict[str, int]:
    """Rule -> what pods reported of the tenant in the spans of the outage.

    Without later ones: a pod that misses a deadline of Redis now and then reports more all the time.
    """
    began_s, ended_s = outage
    quota = keys.tenant_quota(ENVIRONMENT, STORYTELLER, "any")
    fields: dict[str, Any] = chapter.limits.hgetall(keys.offline_totals(quota))  # type: ignore[assignment]
    found: dict[str, int] = {}
    for field, amount in fields.items():
        part = read_part(field)
        if part is None or part.shadow:
            continue
        if part.start_s < ended_s and part.start_s + part.length_s > began_s:
            rule = part.limit.split(":")[1]
            found[rule] = found.get(rule, 0) + int(amount)
    return found


def _is_reported(
    chapter: Chapter, outage: tuple[float, float], reported: dict[str, int], lost: dict[str, int]
) -> bool:
    """Whether each limit of the tenant has its row, with what is in Redis and at most what is lost."""
    since, until = (datetime.fromtimestamp(moment, UTC).isoformat() for moment in outage)
    query = urlencode({"since": since, "until": until})
    page = chapter.browser("viewer").read(f"/reconciliation?{query}")
    shown = {rule: amount_on(page, STORYTELLER, rule) for rule in reported}
    return bool(reported) and all(
        amount <= shown[rule] <= amount + lost.get(rule, 0) for rule, amount in reported.items()
    )


def amount_on(page: str, tenant: str, rule: str) -> int:
    """What the page says that pods allowed of this quota without Redis; -1 without such a row."""
    for row in re.findall(r"<tr data-row.*?</tr>", page, re.S):
        words = " ".join(re.sub(r"<[^>]*>", " ", row).split())
        # The first number of a row is what was allowed without Redis.
        amount = re.search(r'data-value="(\d+)"', row)
        if amount and words.startswith(f"{tenant} requests {rule} "):
            return int(amount[1])
    return -1
