"""Redis is killed; what pods allowed meanwhile is in the report of the outage, call by call."""

import os
import re
import signal
import time
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from controlplane import embedded
from controlplane.demo.scenario import STORYTELLER
from controlplane.demo.seed import ENVIRONMENT
from controlplane.demo.story.chapter import Chapter, CheckFailed, slowest
from controlplane.demo.story.redis import LIMITS
from fuseboard.contract import keys
from fuseboard.contract.offline_fields import read_part
from fuseboard.contract.words import Mode

_AWAY_S = 4.0
#: The last span of the outage lasts for up to a minute, and the worker copies every 30 s while pods change
#: their modes.
_COPIED_S = 120


def reconciled(chapter: Chapter) -> str:
    """What the page says of a tenant is what its pods reported to Redis, and includes every local answer."""
    with chapter.watch("search", STORYTELLER) as watch:
        began_s = time.time()
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
        lambda: _is_reported(chapter, outage, _reported(chapter, outage)),
        within_s=_COPIED_S,
    )
    reported = _reported(chapter, outage)
    if not reported or max(reported.values()) < alone:
        raise CheckFailed(f"pods answered {alone} calls by themselves and reported {reported}")
    counted = ", ".join(f"{amount} of {rule}" for rule, amount in sorted(reported.items()))
    return (
        f"{alone} calls of {STORYTELLER} answered without Redis; its limits counted {counted}; the page says"
        f" the same {copied_ms / 1000:.0f} s after all pods shared ({slowest(shared)} after Redis was back)"
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


def _is_reported(chapter: Chapter, outage: tuple[float, float], reported: dict[str, int]) -> bool:
    """Whether each limit of the tenant has its row on the page, with the same number."""
    since, until = (datetime.fromtimestamp(moment, UTC).isoformat() for moment in outage)
    query = urlencode({"since": since, "until": until})
    page = chapter.browser("viewer").read(f"/reconciliation?{query}")
    rows = [
        " ".join(re.sub(r"<[^>]*>", " ", row).split())
        for row in re.findall(r"<tr data-row.*?</tr>", page, re.S)
    ]
    return bool(reported) and all(
        any(row.startswith(f"{STORYTELLER} ") and f" {rule} {amount:,} " in row for row in rows)
        for rule, amount in reported.items()
    )
