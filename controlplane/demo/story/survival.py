"""Stores that freeze, forget or go away, and a pod that starts with nobody to ask."""

import os
import signal
import time
from contextlib import ExitStack
from typing import Any

from controlplane import embedded
from controlplane.demo.scenario import PENNY, PODS, QUOTA, STORYTELLER
from controlplane.demo.seed import ENVIRONMENT
from controlplane.demo.services import CONTROL_PLANE
from controlplane.demo.story.chapter import Telling, Untrue, slowest, until
from controlplane.demo.story.operator import DEPENDENCY, act
from controlplane.demo.story.redis import LIMITS
from fuseboard.contract import keys
from fuseboard.contract.words import Mode, Reason

POSTGRES = "DATABASE_URL"

#: Held by a hand, or open because of it: without Postgres a pod may only have learned the second.
HELD_OPEN = {Reason.FORCED_OPEN, Reason.BREAKER_OPEN}

_FROZEN_S = 6.0
_HEALED_S = 5.0
_LIMIT_TRIED = 77


def redis_frozen(telling: Telling) -> str:
    """Worse than killed: connections stay, and nothing is answered. Callers must not notice."""
    telling.stage.figures(begin_anew=True)
    time.sleep(1.5)
    calm = telling.stage.figures(begin_anew=True)
    server = embedded.look_up(LIMITS, folder=telling.stage.folder).server
    # Deadlines must be missed often before a pod stops asking: three who ask are heard soon.
    others = (telling.watch(dependency, STORYTELLER) for dependency in ("ledger-db", "email-smtp"))
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(other)
        watch = stack.enter_context(telling.watch("search", STORYTELLER))
        os.kill(server, signal.SIGSTOP)
        frozen = time.monotonic()
        try:
            times = watch.first("decide locally", lambda a: a.mode == Mode.LOCAL, since=frozen, within_s=15)
            time.sleep(_FROZEN_S)
            figures = telling.stage.figures()
        finally:
            os.kill(server, signal.SIGCONT)
        thawed = time.monotonic()
        shared = watch.first("share limits", lambda a: a.mode == Mode.SHARED, since=thawed, within_s=15)
    if trouble := figures.trouble() or ", ".join(watch.errors[:1]):
        raise Untrue(trouble)
    return (
        f"{figures.answered} calls answered meanwhile, none failed; longest added delay "
        f"{max(0.0, figures.slowest_ms - calm.typical_ms):.0f} ms (slowest call before "
        f"{calm.slowest_ms:.0f} ms); all pods local after {slowest(times)}, shared {slowest(shared)} "
        "after it went on"
    )


def redis_flushed(telling: Telling) -> str:
    """FLUSHALL while a breaker is held open: configuration and hold come back, and nobody got through."""
    act(telling, "forced_open", "Held while somebody empties Redis", refused_because=HELD_OPEN)
    head, held = keys.config_head(ENVIRONMENT), keys.override(ENVIRONMENT, DEPENDENCY)
    revision: Any = telling.limits.hget(head, "revision")
    hold: Any = telling.limits.get(held)
    with telling.watch(DEPENDENCY, STORYTELLER) as watch:
        telling.limits.flushall()
        emptied = time.monotonic()
        until(
            "the configuration is back",
            lambda: telling.limits.hget(head, "revision") == revision,
            within_s=15,
        )
        config_s = time.monotonic() - emptied
        until("the hold is back", lambda: telling.limits.get(held) == hold, within_s=15)
        hold_s = time.monotonic() - emptied
        time.sleep(0.5)
    answers = [answer for each in watch.answers.values() for answer in each if answer.sent_at >= emptied]
    passed = sum(answer.refused_because not in HELD_OPEN for answer in answers)
    act(telling, "reset", "Redis is whole again", refused_because={""})
    if passed or watch.errors:
        raise Untrue(
            f"{passed} of {len(answers)} calls passed the hold; errors: {watch.errors[:1] or 'none'}"
        )
    if max(config_s, hold_s) > _HEALED_S:
        raise Untrue(f"configuration back after {config_s:.1f} s, hold after {hold_s:.1f} s")
    return (
        f"configuration back {config_s * 1000:.0f} ms and the hold {hold_s * 1000:.0f} ms after FLUSHALL; "
        f"0 of {len(answers)} calls passed the breaker that was held open"
    )


def postgres_down(telling: Telling) -> str:
    """Killed: pods do not notice, the board says so and still trips; an edit waits and loses nothing."""
    folder = telling.stage.folder
    operator, admin = telling.browser("operator"), telling.browser("admin")
    edit = admin.form(f"/tenant?key={PENNY}&quota={QUOTA}", "limit", "burst", "reason")
    operator.read("/breakers")  # whoever is at the board when it happens has been seen lately
    telling.stage.figures(begin_anew=True)
    os.kill(embedded.look_up(POSTGRES, folder=folder).server, signal.SIGKILL)
    killed = time.monotonic()
    try:
        labelled_ms = until(
            "the board says that Postgres is away",
            lambda: "Postgres is away" in operator.client.get("/breakers").text,
            within_s=15,
        )
        tripped = act(telling, "forced_open", "Postgres burns, and so does search", refused_because=HELD_OPEN)
        refused = admin.send(
            edit, limit=str(_LIMIT_TRIED), burst=str(_LIMIT_TRIED), reason="Not now, it seems"
        )
        figures = telling.stage.figures()
        away_s = time.monotonic() - killed
    finally:
        embedded.revive(POSTGRES, folder=folder, within_s=30)
    if refused.status_code != 503:
        raise Untrue(f"an edit without Postgres was answered by {refused.status_code}")
    if trouble := figures.trouble():
        raise Untrue(trouble)
    kept = until("the trip is in the audit", lambda: _audited(telling), within_s=20)
    if f'value="{_LIMIT_TRIED}"' in admin.read(f"/tenant?key={PENNY}&quota={QUOTA}"):
        raise Untrue("the edit that was refused was made all the same")
    saved = admin.send(edit, limit=edit.fields["limit"], burst=edit.fields["burst"], reason="Tried again")
    if saved.status_code != 200:
        raise Untrue(f"the same form, sent again, was answered by {saved.status_code}")
    act(telling, "reset", "All is well again", refused_because={""})
    return (
        f"away {away_s:.1f} s: {figures.answered} calls answered, none failed; board labelled after "
        f"{labelled_ms:.0f} ms; trip everywhere {slowest(tripped)} after the form, in the audit "
        f"{kept:.0f} ms after Postgres was back; a quota edit got 503, and 200 when sent again"
    )


def _audited(telling: Telling) -> bool:
    answer = telling.browser("viewer").client.get("/audit")
    return answer.status_code == 200 and "Postgres burns, and so does search" in answer.text


def pod_restart_offline(telling: Telling) -> str:
    """Redis and the whole control plane are gone when a pod starts: it decides by what it kept."""
    stage, pod = telling.stage, PODS[1]
    before = telling.ask(pod, "search", STORYTELLER)
    stage.troupe.kill(*CONTROL_PLANE)
    os.kill(embedded.look_up(LIMITS, folder=stage.folder).server, signal.SIGKILL)
    try:
        stage.troupe.kill(pod)
        stage.troupe.begin(pod)
        began = time.monotonic()
        stage.troupe.await_answers([pod])
        answers_ms = (time.monotonic() - began) * 1000
        alone = telling.ask(pod, "search", STORYTELLER)
    finally:
        embedded.revive(LIMITS, folder=stage.folder)
        stage.troupe.begin(*CONTROL_PLANE)
        stage.troupe.await_answers(CONTROL_PLANE)
    if (alone.status, alone.mode, alone.revision) != (200, Mode.LOCAL, before.revision):
        raise Untrue(
            f"it answers {alone.status} in mode {alone.mode} by revision {alone.revision}: {alone.body}"
        )
    with telling.watch("search", STORYTELLER) as watch:
        back = time.monotonic()
        shared = watch.first("share limits", lambda a: a.mode == Mode.SHARED, since=back, within_s=20)
    return (
        f"{pod} answers {answers_ms:.0f} ms after its start, in mode local by revision {alone.revision} "
        f"from its disk; with Redis back, all pods shared after {slowest(shared)}"
    )
