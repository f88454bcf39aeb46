"""The control plane is killed and restarted; the pods are not affected."""

import re
import time

from tools.demo.scenario import PODS, STORYTELLER
from tools.demo.services import CONTROL_PLANE
from tools.demo.story.chapter import Chapter, CheckFailed, slowest
from tools.demo.story.quotas import raise_quota

_AWAY_S = 2.0
_LIMIT_AFTER = 60


def control_plane_restart(chapter: Chapter) -> str:
    """``kill -9`` for web, gateway, worker and beat; then all of them again, and one more edit."""
    processes = chapter.demo.processes
    chapter.demo.figures(reset=True)
    with chapter.watch("search", STORYTELLER) as watch:
        killed = time.monotonic()
        processes.kill(*CONTROL_PLANE)
        time.sleep(_AWAY_S)
        processes.begin(*CONTROL_PLANE)
        began = time.monotonic()
        processes.wait_until_ready(CONTROL_PLANE)
        answers_ms = (time.monotonic() - began) * 1000
    figures = chapter.demo.figures()
    if trouble := figures.trouble() or ", ".join(watch.errors[:1]):
        raise CheckFailed(trouble)
    decided = sum(len(answers) for answers in watch.answers.values()) + figures.answered
    # The same browser: a signed cookie survives the process that signed it.
    # A pod that found no control plane waits up to twice as long as it was down before it tries again.
    down_s = time.monotonic() - killed
    chapter.until(
        "all pods on the servers page again",
        lambda: _listed_well(chapter) == list(PODS),
        within_s=10 + 2 * down_s,
    )
    _, times = raise_quota(chapter, _LIMIT_AFTER, reason="Still her plan, after all")
    return (
        f"{decided} calls decided while it was down, none failed; it answered {answers_ms:.0f} ms after its "
        f"start, and every pod decided by the next edit {slowest(times)} after the form was sent"
    )


def _listed_well(chapter: Chapter) -> list[str]:
    page = chapter.browser("viewer").read("/servers")
    # The assistant is not of the shop.
    found = re.findall(r'id="srv-([^"]+)"[^>]*data-kind="shared"', page)
    return sorted(set(found).intersection(PODS))
