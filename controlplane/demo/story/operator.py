"""An operator stops all calls to a dependency, and lets them through again."""

import time

from controlplane.demo.cast import STORYTELLER
from controlplane.demo.story.telling import Telling, Untrue, slowest

DEPENDENCY = "search"
REASON = "The index is being rebuilt, half of it is missing"


def operator_trip(telling: Telling) -> str:
    """Held open by a form: every pod refuses, and the audit knows who and why."""
    times = _act(telling, "forced_open", REASON, refused_because="forced_open")
    audit = telling.browser("viewer").read("/audit")
    missing = [word for word in (REASON, "operator", DEPENDENCY) if word not in audit]
    if missing:
        raise Untrue(f"the audit page does not say {missing}")
    return f"all pods refuse {slowest(times)} after opening the form; the audit names operator and the reason"


def operator_reset(telling: Telling) -> str:
    """Reset: closed at once, everywhere."""
    times = _act(telling, "reset", "The index is complete again", refused_because="")
    return f"all pods call again {slowest(times)} after opening the form"


def _act(telling: Telling, act: str, reason: str, *, refused_because: str) -> dict[str, float]:
    with telling.watch(DEPENDENCY, STORYTELLER) as watch:
        began = time.monotonic()
        answers = {"act": act, "reason": reason, "lasts": "15"}
        done = telling.browser("operator").submit(f"/breakers/{DEPENDENCY}", answers)
        if done.status_code != 200:
            raise Untrue(f"the form answered {done.status_code}: {done.text[:300]}")
        return watch.first(
            "refuse" if refused_because else "call again",
            lambda answer: answer.status == 200 and answer.refused_because == refused_because,
            since=began,
            within_s=5,
        )
