"""Stores that freeze, lose data or stop, and a pod that starts while all of them are down."""

import os
import signal
import time
from contextlib import ExitStack
from typing import Any

from django.db import connection

from controlplane import embedded
from fuseboard.contract import keys
from fuseboard.contract.words import Mode, Reason
from tools.demo.scenario import PODS, STORYTELLER
from tools.demo.seed import ENVIRONMENT
from tools.demo.services import CONTROL_PLANE
from tools.demo.story.chapter import Chapter, CheckFailed, slowest
from tools.demo.story.operator import DEPENDENCY, act
from tools.demo.story.quotas import BURST, EDITOR, LIMIT
from tools.demo.story.redis import LIMITS

POSTGRES = "DATABASE_URL"

#: Forced open, or open because of it: without Postgres a pod may only have learned the second.
HELD_OPEN = {Reason.FORCED_OPEN, Reason.BREAKER_OPEN}

_FROZEN_S = 6.0
_HEALED_S = 5.0
_LIMIT_TRIED = 77


def redis_frozen(chapter: Chapter) -> str:
    """Worse than killed: connections stay open without an answer. Callers must not notice."""
    chapter.demo.figures(reset=True)
    time.sleep(1.5)
    calm = chapter.demo.figures(reset=True)
    server = embedded.look_up(LIMITS, folder=chapter.demo.folder).server
    # A pod stops asking after many missed deadlines: three concurrent callers reach that soon.
    others = (chapter.watch(dependency, STORYTELLER) for dependency in ("ledger-db", "email-smtp"))
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(other)
        watch = stack.enter_context(chapter.watch("search", STORYTELLER))
        os.kill(server, signal.SIGSTOP)
        frozen = time.monotonic()
        try:
            times = watch.first("decide locally", lambda a: a.mode == Mode.LOCAL, since=frozen, within_s=15)
            time.sleep(_FROZEN_S)
            figures = chapter.demo.figures()
        finally:
            os.kill(server, signal.SIGCONT)
        thawed = time.monotonic()
        shared = watch.first("share limits", lambda a: a.mode == Mode.SHARED, since=thawed, within_s=15)
    if trouble := figures.trouble() or ", ".join(watch.errors[:1]):
        raise CheckFailed(trouble)
    return (
        f"{figures.answered} calls answered meanwhile, none failed; {figures.delays(calm)};"
        f" all pods local after {slowest(times)}, shared {slowest(shared)} after it resumed"
    )


def redis_flushed(chapter: Chapter) -> str:
    """FLUSHALL while a breaker is forced open: configuration and override return, and no call passes."""
    act(chapter, "forced_open", "Forced open while Redis is emptied", refused_because=HELD_OPEN)
    head, held = keys.config_head(ENVIRONMENT), keys.override(ENVIRONMENT, DEPENDENCY)
    revision: Any = chapter.limits.hget(head, "revision")
    hold: Any = chapter.limits.get(held)
    with chapter.watch(DEPENDENCY, STORYTELLER) as watch:
        chapter.limits.flushall()
        emptied = time.monotonic()
        chapter.until(
            "the configuration is back",
            lambda: chapter.limits.hget(head, "revision") == revision,
            within_s=15,
        )
        config_s = time.monotonic() - emptied
        chapter.until("the override is back", lambda: chapter.limits.get(held) == hold, within_s=15)
        hold_s = time.monotonic() - emptied
        time.sleep(0.5)
    answers = [answer for each in watch.answers.values() for answer in each if answer.sent_at >= emptied]
    passed = sum(answer.refused_because not in HELD_OPEN for answer in answers)
    act(chapter, "reset", "Redis is whole again", refused_because={""})
    if passed or watch.errors:
        raise CheckFailed(
            f"{passed} of {len(answers)} calls passed the override; errors: {watch.errors[:1] or 'none'}"
        )
    if max(config_s, hold_s) > _HEALED_S * chapter.demo.patience:
        raise CheckFailed(f"configuration back after {config_s:.1f} s, override after {hold_s:.1f} s")
    return (
        f"configuration back {config_s * 1000:.0f} ms and the override {hold_s * 1000:.0f} ms after"
        f" FLUSHALL; 0 of {len(answers)} calls passed the breaker that was forced open"
    )


def postgres_down(chapter: Chapter) -> str:
    """Killed: pods do not notice, the dashboard shows it and can still trip; an edit fails and loses
    nothing.
    """
    folder = chapter.demo.folder
    operator, admin = chapter.browser("operator"), chapter.browser("admin")
    edit = admin.form(EDITOR, LIMIT, BURST, "reason")
    tried = {LIMIT: str(_LIMIT_TRIED), BURST: str(_LIMIT_TRIED)}
    operator.read("/breakers")  # users of the dashboard have been seen recently
    chapter.demo.figures(reset=True)
    os.kill(embedded.look_up(POSTGRES, folder=folder).server, signal.SIGKILL)
    killed = time.monotonic()
    try:
        labelled_ms = chapter.until(
            "the dashboard says that Postgres is unavailable",
            lambda: "Postgres is unavailable" in operator.client.get("/breakers").text,
            within_s=15,
        )
        tripped = act(
            chapter, "forced_open", "Postgres is down, and search fails too", refused_because=HELD_OPEN
        )
        refused = admin.send(edit, **tried, reason="Not now, it seems")
        figures = chapter.demo.figures()
        away_s = time.monotonic() - killed
    finally:
        embedded.revive(POSTGRES, folder=folder, within_s=30)
        # The director's connection to the one that was killed, if an earlier checkpoint opened it.
        connection.close()
    if refused.status_code != 503:
        raise CheckFailed(f"an edit without Postgres was answered by {refused.status_code}")
    if trouble := figures.trouble():
        raise CheckFailed(trouble)
    kept = chapter.until("the trip is in the audit", lambda: _audited(chapter), within_s=20)
    if f'value="{_LIMIT_TRIED}"' in admin.read(EDITOR):
        raise CheckFailed("the edit that was refused was made all the same")
    saved = admin.send(edit, **tried, reason="Tried again")
    if saved.status_code != 200:
        raise CheckFailed(f"the same form, sent again, was answered by {saved.status_code}")
    act(chapter, "reset", "All is well again", refused_because={""})
    return (
        f"down {away_s:.1f} s: {figures.answered} calls answered, none failed; dashboard labelled after "
        f"{labelled_ms:.0f} ms; trip everywhere {slowest(tripped)} after the form, in the audit "
        f"{kept:.0f} ms after Postgres was back; a quota edit got 503, and 200 when sent again"
    )


def _audited(chapter: Chapter) -> bool:
    answer = chapter.browser("viewer").client.get("/audit")
    return answer.status_code == 200 and "Postgres is down, and search fails too" in answer.text


def pod_restart_offline(chapter: Chapter) -> str:
    """Redis and the whole control plane are down when a pod starts: it decides by its copy on disk."""
    demo, pod = chapter.demo, PODS[1]
    before = chapter.ask(pod, "search", STORYTELLER)
    demo.processes.kill(*CONTROL_PLANE)
    os.kill(embedded.look_up(LIMITS, folder=demo.folder).server, signal.SIGKILL)
    try:
        demo.processes.kill(pod)
        demo.processes.begin(pod)
        began = time.monotonic()
        demo.processes.wait_until_ready([pod])
        answers_ms = (time.monotonic() - began) * 1000
        alone = chapter.ask(pod, "search", STORYTELLER)
    finally:
        embedded.revive(LIMITS, folder=demo.folder)
        demo.processes.begin(*CONTROL_PLANE)
        demo.processes.wait_until_ready(CONTROL_PLANE)
    if (alone.status, alone.mode, alone.revision) != (200, Mode.LOCAL, before.revision):
        raise CheckFailed(
            f"it answers {alone.status} in mode {alone.mode} by revision {alone.revision}: {alone.body}"
        )
    with chapter.watch("search", STORYTELLER) as watch:
        back = time.monotonic()
        shared = watch.first("share limits", lambda a: a.mode == Mode.SHARED, since=back, within_s=20)
    return (
        f"{pod} answers {answers_ms:.0f} ms after its start, in mode local by revision {alone.revision} "
        f"from its disk; with Redis back, all pods shared after {slowest(shared)}"
    )
