"""An admin makes one pod act as if Redis were down; it is visible, harms nothing, and ends early."""

import re
import time

from fuseboard.contract.words import Mode
from tools.demo.browser import text_of
from tools.demo.scenario import PODS, STORYTELLER
from tools.demo.story.chapter import Chapter, CheckFailed

_CHOSEN, *_OTHERS = reversed(PODS)
_LASTS_S = 1.5


def drill(chapter: Chapter) -> str:
    """Start and end a drill on the drills page."""
    admin = chapter.browser("admin")
    chapter.until(
        f"{_CHOSEN} on the servers page",
        lambda: _listed(chapter, Mode.SHARED).count(_CHOSEN) == 1,
        within_s=15,
    )
    chapter.demo.figures(reset=True)
    begun = admin.send(
        admin.form("/drills", "kind", "minutes"),
        kind="gone",
        minutes="1",
        who="servers",
        servers=_CHOSEN,
        reason="To see what a pod does without Redis",
    )
    if begun.status_code != 200 or f"Drill started on {_CHOSEN}" not in begun.text:
        raise CheckFailed(f"the form answered {begun.status_code}: {text_of(begun.text)[:300]}")
    pretends_ms = chapter.until(
        f"{_CHOSEN} in a drill", lambda: _mode(chapter, _CHOSEN) == Mode.DRILL, within_s=10
    )
    chapter.until(
        "the drill on the servers page", lambda: _listed(chapter, Mode.DRILL) == [_CHOSEN], within_s=5
    )
    chapter.until(
        "the drill's page to count it",
        lambda: "1 of 1 pod has started the drill" in text_of(admin.read("/drills")),
        within_s=5,
    )
    time.sleep(_LASTS_S)
    if strays := [pod for pod in _OTHERS if _mode(chapter, pod) != Mode.SHARED]:
        raise CheckFailed(f"{', '.join(strays)} did not take part, and does not share")
    ended = admin.send(admin.form("/drills", "drill", "act"), act="end")
    if "No drill is running" not in ended.text:
        raise CheckFailed(f"ending it answered {ended.status_code}: {text_of(ended.text)[:300]}")
    shares_ms = chapter.until(
        f"{_CHOSEN} to share again", lambda: _mode(chapter, _CHOSEN) == Mode.SHARED, within_s=15
    )
    if trouble := chapter.demo.figures().trouble():
        raise CheckFailed(trouble)
    audit = admin.read("/audit")
    if "Drill started" not in audit or "Drill ended" not in audit:
        raise CheckFailed("the audit does not record it")
    return (
        f"{_CHOSEN} was in the drill after {pretends_ms:.0f} ms and shared again {shares_ms:.0f} ms after"
        f" its end; {chapter.demo.figures().answered} calls answered meanwhile, none failed; the other"
        " pods kept sharing"
    )


def _mode(chapter: Chapter, pod: str) -> str:
    return chapter.ask(pod, "search", STORYTELLER).mode


def _listed(chapter: Chapter, mode: Mode) -> list[str]:
    page = chapter.browser("viewer").read("/servers")
    return sorted(re.findall(rf'id="srv-([^"]+)"[^>]*data-kind="{mode}"', page))
