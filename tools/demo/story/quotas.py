"""A tenant over its quota, and an admin who raises the quota."""

import time

from tools.demo.scenario import PENNY, PODS, QUOTA, TIERS
from tools.demo.story.chapter import Chapter, CheckFailed, slowest

NEW_LIMIT = 40
#: The editor of the tenant whose quota changes, and its inputs.
EDITOR = f"/edit/tenant?key={PENNY}"
LIMIT, BURST = f"limit.{QUOTA}.limit", f"limit.{QUOTA}.burst"


def quota_429(chapter: Chapter) -> str:
    """More calls than the quota allows, spread over all pods: the fleet together allows no more."""
    quota = TIERS["free"]
    began = time.monotonic()
    answers = [chapter.ask(PODS[number % len(PODS)], "search", PENNY) for number in range(36)]
    took_s = time.monotonic() - began
    allowed = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status == 429]
    if len(allowed) + len(refused) != len(answers) or not refused:
        raise CheckFailed(
            f"statuses {sorted({answer.status for answer in answers})}, {len(refused)} of them 429"
        )
    most = quota.burst + int(quota.limit * took_s / quota.window_s) + 1
    if len(allowed) > most:
        raise CheckFailed(f"{len(allowed)} calls allowed in {took_s:.2f} s, at most {most} by the quota")
    headers = refused[0].headers
    wanted = ("RateLimit", "RateLimit-Policy", "Retry-After")
    missing = [name for name in wanted if not headers.get(name)]
    if missing or not headers["Content-Type"].startswith("application/problem+json"):
        raise CheckFailed(f"a 429 lacks {missing}; its content type is {headers['Content-Type']}")
    shown = "; ".join(f"{name}: {headers[name]}" for name in wanted)
    return (
        f"{len(allowed)} of {len(answers)} allowed in {took_s:.2f} s (at most {most}), then 429 with {shown}"
    )


def quota_edit(chapter: Chapter) -> str:
    """From the admin's click on Save to the first decision under the new limit, on every pod."""
    revision, times = raise_quota(chapter, NEW_LIMIT, reason="Penny upgraded her plan")
    return f"every pod decides by the new limit {slowest(times)} after the form was sent, revision {revision}"


def raise_quota(chapter: Chapter, limit: int, *, reason: str) -> tuple[int, dict[str, float]]:
    """Save the quota by the form; return the revision, and milliseconds until each pod decided by it."""
    admin = chapter.browser("admin")
    form = admin.form(EDITOR, LIMIT, BURST, "reason")
    with chapter.watch("search", PENNY) as watch:
        sent = time.monotonic()
        saved = admin.send(form, **{LIMIT: str(limit), BURST: str(limit)}, reason=reason)
        if saved.status_code != 200:
            raise CheckFailed(f"the form answered {saved.status_code}: {saved.text[:300]}")
        times = watch.first(
            "decide by the new limit",
            lambda answer: f";q={limit};" in answer.headers.get("RateLimit-Policy", ""),
            since=sent,
            within_s=5,
        )
    return max(answers[-1].revision for answers in watch.answers.values()), times
