"""A program that edits through the API: a repeated request makes one edit, and its overrides expire."""

import threading
import time
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import httpx
from django.utils import timezone

from controlplane.accounts.tokens import create_api_token
from controlplane.audit.models import Entry
from controlplane.policies.models import Environment
from fuseboard.contract.words import Reason
from tools.demo.scenario import PENNY, QUOTA, STORYTELLER, TIERS
from tools.demo.seed import DIRECTOR, ENVIRONMENT
from tools.demo.story.chapter import Chapter, CheckFailed, slowest

_EDITS = 40
_AT_ONCE = 4
#: Edits made before the process is killed.
_BEFORE = 15

DEPENDENCY = "fraud-score"
HELD_S = 3
PROMISED = 55
LASTS_S = 4


class Program:
    """A pipeline with its own token."""

    def __init__(self, chapter: Chapter) -> None:
        token = create_api_token(
            name="demo pipeline",
            role="admin",
            environment=ENVIRONMENT,
            expires_at=timezone.now() + timedelta(hours=1),
            reason="The demo edits through the API",
            actor=DIRECTOR,
        )
        self.chapter = chapter
        self.client = httpx.Client(
            base_url=f"{chapter.demo.url('web')}/api/v1/{ENVIRONMENT}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=10.0,
            trust_env=False,
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def write(self, method: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        answer = self.client.request(method, path, json=body, headers=headers)
        if answer.status_code >= 400 and answer.status_code != 409 and answer.status_code < 500:
            raise CheckFailed(f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}")
        return answer


def api_idempotency(chapter: Chapter) -> str:
    """Web is killed during edits; each is sent until it is answered, and made exactly once."""
    with Program(chapter) as program:
        before = _revision()
        run = _Run(program)
        threads = [threading.Thread(target=run.work) for _ in range(_AT_ONCE)]
        for thread in threads:
            thread.start()
        chapter.until("the first edits", lambda: len(run.revisions) >= _BEFORE, within_s=20)
        chapter.demo.processes.kill("web")
        chapter.demo.processes.begin("web")
        for thread in threads:
            thread.join(60)
        if run.errors or len(run.revisions) != _EDITS:
            raise CheckFailed(f"{len(run.revisions)} of {_EDITS} edits were answered; {run.errors[:1]}")
        first, unsure = dict(run.revisions), run.replayed
        # A program that lost its state sends everything again.
        again = _Run(program)
        again.work()
        made = _revision() - before
        entries = Entry.objects.filter(action="tuning.set", reason__startswith="Pipeline step").count()
    if (made, entries, len(set(first.values()))) != (_EDITS, _EDITS, _EDITS):
        raise CheckFailed(f"{_EDITS} edits became {made} revisions and {entries} audit entries")
    if again.revisions != first or again.replayed != _EDITS:
        raise CheckFailed(f"sent again, only {again.replayed} of {_EDITS} got the first response")
    return (
        f"{_EDITS} edits, web killed after {_BEFORE}, {run.unanswered} attempts without a response: "
        f"{unsure} of these edits had been made; {made} revisions, {entries} audit entries, "
        f"and all {again.replayed} sent again changed nothing"
    )


class _Run:
    """Sends every edit until it is answered, several at a time."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.revisions: dict[int, int] = {}
        self.errors: list[str] = []
        self.unanswered = self.replayed = 0
        self._waiting: SimpleQueue[int] = SimpleQueue()
        for number in range(_EDITS):
            self._waiting.put(number)

    def work(self) -> None:
        while True:
            try:
                number = self._waiting.get_nowait()
            except Empty:
                return
            self._send(number)

    def _send(self, number: int) -> None:
        # The current value: the test is about how often it is written.
        body = {"tuning": {"report_interval_ms": 50}, "reason": f"Pipeline step {number}"}
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            try:
                key = {"Idempotency-Key": f"pipeline-{number}"}
                answer = self.program.write("PATCH", "configuration/tuning", body, **key)
            except httpx.TransportError:
                self.unanswered += 1
                time.sleep(0.1)
                continue
            except CheckFailed as error:
                self.errors.append(str(error))
                return
            if answer.status_code == 200:
                self.replayed += answer.headers.get("Idempotency-Replayed") == "true"
                self.revisions[number] = answer.json()["revision"]
                return
            time.sleep(0.1)


def expiring_override(chapter: Chapter) -> str:
    """An override and a quota with an expiry: every pod applies them, and stops without any action."""
    with Program(chapter) as program:
        held, let_go = _hold(chapter, program)
        raised, back = _raise(chapter, program)
    chapter.until("the audit has both ends, by fuseboard", _both_expired, within_s=5)
    return (
        f"overridden for {HELD_S} s, all pods refuse after {slowest(held)}, and call again {slowest(let_go)}"
        f" after its end; a quota for {LASTS_S} s after {slowest(raised)}, gone {slowest(back)} after"
        " its end; Fuseboard ended both, and the audit records it"
    )


def _hold(chapter: Chapter, program: Program) -> tuple[dict[str, float], dict[str, float]]:
    body = {"mode": "forced_open", "expires_in_s": HELD_S, "reason": "The fraud desk reloads its model"}
    with chapter.watch(DEPENDENCY, STORYTELLER) as watch:
        sent = time.monotonic()
        program.write("POST", f"breakers/{DEPENDENCY}/override", body)
        held = watch.first(
            "refuse", lambda answer: answer.refused_because == Reason.FORCED_OPEN, since=sent, within_s=HELD_S
        )
        over = sent + HELD_S
        let_go = watch.first("call again", lambda answer: not answer.refused_because, since=over, within_s=10)
        early = [
            answer
            for answers in watch.answers.values()
            for answer in answers
            if sent + max(held.values()) / 1000 + 0.1 < answer.sent_at < over - 0.3
            and not answer.refused_because
        ]
    if early:
        raise CheckFailed(f"{len(early)} calls were made during the override")
    return held, let_go


def _raise(chapter: Chapter, program: Program) -> tuple[dict[str, float], dict[str, float]]:
    tenant = program.get(f"tenants/{PENNY}")
    own = next((quota for quota in tenant["quotas"] if quota["name"] == QUOTA), None)
    usual = own["limit"] if own else TIERS["free"].limit
    body = {
        "limit": PROMISED,
        "window_s": 1,
        "burst": PROMISED,
        "expires_in_s": LASTS_S,
        "reason": "Her launch is right now",
    }
    with chapter.watch("search", PENNY) as watch:
        sent = time.monotonic()
        program.write(
            "PUT", f"tenants/{PENNY}/quotas/{QUOTA}", body, **{"If-Match": f'"{tenant["version"]}"'}
        )
        raised = watch.first(
            "decide by the raised limit",
            lambda answer: f";q={PROMISED};" in answer.headers.get("RateLimit-Policy", ""),
            since=sent,
            within_s=LASTS_S,
        )
        back = watch.first(
            "decide by the usual limit",
            lambda answer: f";q={usual};" in answer.headers.get("RateLimit-Policy", ""),
            since=sent + LASTS_S,
            within_s=10,
        )
    return raised, back


def _revision() -> int:
    return Environment.objects.values_list("revision", flat=True).get(pk=ENVIRONMENT)


def _both_expired() -> bool:
    recently = timezone.now() - timedelta(minutes=1)
    entries = Entry.objects.filter(actor="fuseboard", at__gte=recently)
    return {"override.expired", "tenant_quota.expired"} <= set(entries.values_list("action", flat=True))
