"""An operator stops all calls to a dependency, and resumes them."""

import time
from collections.abc import Collection

from fuseboard.contract.words import Reason
from tools.demo.scenario import STORYTELLER
from tools.demo.story.chapter import Chapter, CheckFailed, slowest

DEPENDENCY = "search"
REASON = "The index is being rebuilt, half of it is missing"


def operator_trip(chapter: Chapter) -> str:
    """Force a breaker open by a form: every pod refuses, the audit has actor and reason, the vendor gets
    no call.
    """
    times = act(chapter, "forced_open", REASON, refused_because={Reason.FORCED_OPEN})
    time.sleep(0.1)  # calls in flight arrive
    before = chapter.demo.vendor_calls(DEPENDENCY)
    audit = chapter.browser("viewer").read("/audit")
    missing = [word for word in (REASON, "operator", DEPENDENCY) if word not in audit]
    if missing:
        raise CheckFailed(f"the audit page does not say {missing}")
    time.sleep(0.5)
    received = chapter.demo.vendor_calls(DEPENDENCY) - before
    if received:
        raise CheckFailed(f"{received} calls were sent although every pod refuses")
    return f"all pods refuse {slowest(times)} after the form was sent; the audit has operator: {REASON!r}"


def operator_reset(chapter: Chapter) -> str:
    """Reset the breaker: it closes at once, on all pods."""
    times = act(chapter, "reset", "The index is complete again", refused_because={""})
    return f"all pods call again {slowest(times)} after the form was sent"


def act(chapter: Chapter, act: str, reason: str, *, refused_because: Collection[str]) -> dict[str, float]:
    """Send the override form; milliseconds until each pod refuses for one of these reasons; "" means that
    it calls.
    """
    with chapter.watch(DEPENDENCY, STORYTELLER) as watch:
        sent = send_override(chapter, DEPENDENCY, act, reason)
        return watch.first(
            "call again" if "" in refused_because else "refuse",
            lambda answer: answer.status == 200 and answer.refused_because in refused_because,
            since=sent,
            within_s=5,
        )


def send_override(chapter: Chapter, dependency: str, act: str, reason: str) -> float:
    """Send the form of a breaker; ``time.monotonic()`` from just before."""
    operator = chapter.browser("operator")
    form = operator.form(f"/breakers/{dependency}", "act", "reason", "lasts")
    sent = time.monotonic()
    done = operator.send(form, act=act, reason=reason, lasts="15")
    if done.status_code != 200:
        raise CheckFailed(f"the form answered {done.status_code}: {done.text[:300]}")
    return sent
