"""An admin has one pod pretend that Redis is gone; it is seen, hurts nobody, and is ended early."""

import re
import time

from controlplane.demo.scenario import PODS, STORYTELLER
from controlplane.demo.story.chapter import Telling, Untrue, until
from fuseboard.contract.words import Mode

_CHOSEN, *_OTHERS = reversed(PODS)
_LASTS_S = 1.5


def drill(telling: Telling) -> str:
    """Begun and ended on the page of drills."""
    admin = telling.browser("admin")
    until(
        f"{_CHOSEN} on the servers page",
        lambda: _listed(telling, Mode.SHARED).count(_CHOSEN) == 1,
        within_s=15,
    )
    telling.stage.figures(begin_anew=True)
    begun = admin.send(
        admin.form("/drills", "kind", "minutes"),
        kind="gone",
        minutes="1",
        who="servers",
        servers=_CHOSEN,
        reason="To see what a pod does alone",
    )
    if begun.status_code != 200 or f"{_CHOSEN} takes part" not in begun.text:
        raise Untrue(f"the form answered {begun.status_code}: {_said(begun.text)}")
    pretends_ms = until(f"{_CHOSEN} in a drill", lambda: _mode(telling, _CHOSEN) == Mode.DRILL, within_s=10)
    until("the drill on the servers page", lambda: _listed(telling, Mode.DRILL) == [_CHOSEN], within_s=5)
    until(
        "the drill's page to count it",
        lambda: "1 of 1</b> server pretends" in admin.read("/drills"),
        within_s=5,
    )
    time.sleep(_LASTS_S)
    if strays := [pod for pod in _OTHERS if _mode(telling, pod) != Mode.SHARED]:
        raise Untrue(f"{', '.join(strays)} did not take part, and does not share")
    ended = admin.send(admin.form("/drills", "drill", "act"), act="end")
    if "No drill is under way" not in ended.text:
        raise Untrue(f"ending it answered {ended.status_code}: {_said(ended.text)}")
    shares_ms = until(
        f"{_CHOSEN} to share again", lambda: _mode(telling, _CHOSEN) == Mode.SHARED, within_s=15
    )
    if trouble := telling.stage.figures().trouble():
        raise Untrue(trouble)
    audit = admin.read("/audit")
    if "Drill begun" not in audit or "Drill ended" not in audit:
        raise Untrue("the audit does not tell of it")
    return (
        f"{_CHOSEN} pretended after {pretends_ms:.0f} ms and shared again {shares_ms:.0f} ms after its end; "
        f"{telling.stage.figures().answered} calls answered meanwhile, none failed; the others shared on"
    )


def _mode(telling: Telling, pod: str) -> str:
    return telling.ask(pod, "search", STORYTELLER).mode


def _listed(telling: Telling, mode: Mode) -> list[str]:
    page = telling.browser("viewer").read("/servers")
    return sorted(re.findall(rf'id="srv-([^"]+)"[^>]*data-kind="{mode}"', page))


def _said(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page[page.find("<main") :]).split())[:300]
