"""Redis dies under load; pods keep answering with local limits; it returns and they share again."""

import os
import re
import signal
import time

from controlplane import embedded
from fuseboard.contract.words import Mode
from tools.demo.scenario import PODS, STORYTELLER
from tools.demo.story.chapter import Chapter, CheckFailed, slowest

LIMITS = "FUSEBOARD_REDIS_URL"


def redis_killed(chapter: Chapter) -> str:
    """``kill -9`` for the ``limits`` server alone."""
    chapter.demo.figures(reset=True)
    time.sleep(1.5)
    calm = chapter.demo.figures(reset=True)
    with chapter.watch("search", STORYTELLER) as watch:
        os.kill(embedded.look_up(LIMITS, folder=chapter.demo.folder).server, signal.SIGKILL)
        killed = time.monotonic()
        times = watch.first("decide locally", lambda a: a.mode == Mode.LOCAL, since=killed, within_s=10)
        chapter.until(
            "three servers listed on local fallback", lambda: _listed_local(chapter) == list(PODS), within_s=5
        )
        listed_ms = (time.monotonic() - killed) * 1000
        time.sleep(1.0)
    figures = chapter.demo.figures()
    if trouble := figures.trouble() or ", ".join(watch.errors[:1]):
        raise CheckFailed(trouble)
    return (
        f"{figures.answered} calls answered meanwhile, none failed; {figures.delays(calm)};"
        f" all pods local after {slowest(times)}; "
        f"the dashboard lists 3 servers on local fallback after {listed_ms:.0f} ms"
    )


def redis_back(chapter: Chapter) -> str:
    """Restarted empty: the configuration is published, pods ramp up, then share."""
    with chapter.watch("search", STORYTELLER) as watch:
        began = time.monotonic()
        embedded.revive(LIMITS, folder=chapter.demo.folder)
        ramping = watch.first("ramp up", lambda a: a.mode == Mode.RAMPING, since=began, within_s=10)
        shared = watch.first("share limits", lambda a: a.mode == Mode.SHARED, since=began, within_s=15)
    if any(shared[pod] <= ramping[pod] for pod in PODS):
        raise CheckFailed(f"a pod shared before it ramped: ramping {ramping}, shared {shared}")
    return f"all pods ramping after {slowest(ramping)}, all shared after {slowest(shared)}"


def _listed_local(chapter: Chapter) -> list[str]:
    page = chapter.browser("viewer").read("/servers")
    # The assistant is not of the shop.
    found = re.findall(r'id="srv-([^"]+)"[^>]*data-kind="local"', page)
    return sorted(set(found).intersection(PODS))
