"""The control plane dies and comes back; the pods do not mind."""

import re
import time

from controlplane.demo.scenario import PODS, STORYTELLER
from controlplane.demo.services import CONTROL_PLANE
from controlplane.demo.story.chapter import Telling, Untrue, slowest, until
from controlplane.demo.story.quotas import raise_quota

_AWAY_S = 2.0
_LIMIT_AFTER = 60


def control_plane_restart(telling: Telling) -> str:
    """``kill -9`` for web, gateway, worker and beat; then all of them again, and one more edit."""
    troupe = telling.stage.troupe
    telling.stage.figures(begin_anew=True)
    with telling.watch("search", STORYTELLER) as watch:
        troupe.kill(*CONTROL_PLANE)
        time.sleep(_AWAY_S)
        troupe.begin(*CONTROL_PLANE)
        began = time.monotonic()
        troupe.await_answers(CONTROL_PLANE)
        answers_ms = (time.monotonic() - began) * 1000
    figures = telling.stage.figures()
    if trouble := figures.trouble() or ", ".join(watch.errors[:1]):
        raise Untrue(trouble)
    decided = sum(len(answers) for answers in watch.answers.values()) + figures.answered
    # The same browser: a signed cookie outlives the process that signed it.
    until("all pods on the servers page again", lambda: _listed_well(telling) == list(PODS), within_s=10)
    _, times = raise_quota(telling, _LIMIT_AFTER, reason="Still her plan, after all")
    return (
        f"{decided} calls decided while it was away, none failed; it answered {answers_ms:.0f} ms after its "
        f"start, and every pod decided by the next edit {slowest(times)} after the form was sent"
    )


def _listed_well(telling: Telling) -> list[str]:
    page = telling.browser("viewer").read("/servers")
    return sorted(re.findall(r'id="srv-([^"]+)"[^>]*data-kind="shared"', page))
