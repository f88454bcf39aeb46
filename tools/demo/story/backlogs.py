"""Receipts wait in a backlog while an operator stops the calls of the mail relay. Then each is sent."""

import time
from contextlib import ExitStack
from typing import Any

import httpx

from tools.demo.browser import text_of
from tools.demo.scenario import OUTBOX, PODS, STORYTELLER
from tools.demo.story.chapter import Chapter, CheckFailed
from tools.demo.story.program import Program

_RECEIPTS = 60
#: Meanwhile no call may reach the vendor, and no worker may have a job.
_WATCHED_S = 2.0


def backlog(chapter: Chapter) -> str:
    """The calls are stopped: receipts wait, and no worker has one. The override ends: all are sent."""
    with Program(chapter) as program, ExitStack() as stack:
        pods = [
            stack.enter_context(
                httpx.Client(
                    base_url=chapter.demo.url(pod),
                    headers={"X-Tenant": STORYTELLER},
                    timeout=5.0,
                    trust_env=False,
                )
            )
            for pod in PODS
        ]
        override = {"mode": "forced_open", "expires_in_s": 300, "reason": "The relay asks for a pause"}
        program.write("POST", f"breakers/{OUTBOX}/override", override).raise_for_status()
        try:
            # Jobs that workers had before the override are finished.
            chapter.until(
                "no worker to have a receipt", lambda: _figures(program)["leased"] == 0, within_s=15
            )
            ids = [_submit(pods[number % len(pods)]) for number in range(_RECEIPTS)]
            chapter.until(
                f"{_RECEIPTS} receipts to wait",
                lambda: _figures(program)["ready"] + _figures(program)["delayed"] >= _RECEIPTS,
                within_s=15,
            )
            calls, waiting = _watch(chapter, program)
            page = text_of(chapter.browser("viewer").read(f"/backlogs/{OUTBOX}"))
        finally:
            ended = {"reason": "The relay is ready again"}
            program.write("POST", f"breakers/{OUTBOX}/end-override", ended).raise_for_status()
        took_ms = chapter.until(
            "every receipt to be sent",
            lambda: all(_state(pods[0], receipt) == "done" for receipt in ids),
            within_s=30,
        )
    if calls:
        raise CheckFailed(f"{calls} calls reached the relay while its breaker was forced open")
    if "forced open" not in page:
        raise CheckFailed(f"the page of the backlog does not say why jobs wait: {page[:300]}")
    return (
        f"forced open: {waiting} receipts wait, in {_WATCHED_S:.0f} s no worker has one and no call reaches"
        f" the relay; the override ends: all {len(ids)} are sent within {took_ms:.0f} ms"
    )


def _watch(chapter: Chapter, program: Program) -> tuple[int, int]:
    """Calls that the relay receives meanwhile, and receipts that wait at the end."""
    before, end = chapter.demo.vendor_calls(OUTBOX), time.monotonic() + _WATCHED_S
    while time.monotonic() < end:
        if leased := _figures(program)["leased"]:
            raise CheckFailed(f"workers have {leased} jobs while the breaker is forced open")
        time.sleep(0.2)
    found = _figures(program)
    return chapter.demo.vendor_calls(OUTBOX) - before, found["ready"] + found["delayed"]


def _figures(program: Program) -> Any:
    return program.get(f"backlogs/{OUTBOX}")


def _submit(pod: httpx.Client) -> str:
    body = pod.post("/receipts").raise_for_status().json()
    if "receipt" not in body:
        raise CheckFailed(f"a receipt was not accepted: {body}")
    return str(body["receipt"])


def _state(pod: httpx.Client, receipt: str) -> str:
    return str(pod.get(f"/receipts/{receipt}").raise_for_status().json()["status"])
