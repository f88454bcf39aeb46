"""A pod protects itself: its slots, its retries, and whom it serves under pressure."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from fuseboard.contract.words import CallTier, Reason
from tools.demo.browser import Browser
from tools.demo.pod import FRESH_S
from tools.demo.scenario import DEPENDENCIES, OBSERVE_SHEDDING_S, PENNY, PODS, STORYTELLER
from tools.demo.story.chapter import Chapter, CheckFailed
from tools.demo.story.program import Program

POD = PODS[0]
#: A busy machine must not look like pressure while another checkpoint runs, so these are set here only.
SLOTS = 10
LATENCY_MS = 400
FLOOD = 24
CRITICAL_CALLS = 8
CALLS = 120
STRAIN_S = 10

Answer = dict[str, Any]

#: How the page of a pod displays that it sheds.
_LEVELS = ("sheds the lowest tiers", "serves only the highest tier")
#: How the page of a dependency displays its fallbacks.
_FALLBACKS = re.compile(r"<b>Fallbacks:</b>\s*(\S+)/s used")


def bulkhead_isolation(chapter: Chapter) -> str:
    """Optional calls use up their slots at one pod; critical calls to the same vendor do not notice."""
    dependency = "fraud-score"
    bulkhead = {
        "max_concurrent": SLOTS,
        "queue_timeout_ms": 1_000,
        "when_full": ["queue", "abort", "discard"],
    }
    stop, optional = threading.Event(), list[Answer]()

    def flood() -> None:
        with _client(chapter) as client:
            while not stop.wait(0.05):
                optional.append(_call(client, dependency, CallTier.OPTIONAL))

    with _protected(chapter, dependency, {"bulkhead": bulkhead}), _vendor(chapter, dependency, 0, LATENCY_MS):
        threads = [threading.Thread(target=flood) for _ in range(FLOOD)]
        for thread in threads:
            thread.start()
        try:
            chapter.until(
                "optional calls to be refused",
                lambda: _refused(optional, Reason.BULKHEAD_FULL) > 0,
                within_s=10,
            )
            with _client(chapter) as client:
                critical = [_call(client, dependency, CallTier.CRITICAL) for _ in range(CRITICAL_CALLS)]
                other = [_call(client, "search", CallTier.STANDARD) for _ in range(CRITICAL_CALLS)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    for name, answers in (("critical", critical), ("other", other)):
        if lost := [answer for answer in answers if answer["reason"]]:
            raise CheckFailed(f"{len(lost)} of {len(answers)} {name} calls got the fallback: {lost[0]}")
    full = _refused(optional, Reason.BULKHEAD_FULL)
    return (
        f"{FLOOD} callers at once: {full} of {len(optional)} optional calls found no slot; all"
        f" {len(critical)} critical calls and {len(other)} calls to another dependency were made"
    )


def retry_budget(chapter: Chapter) -> str:
    """Retries help while few calls fail, and hardly add to the load while all of them fail."""
    dependency = "email-smtp"
    retry = {"attempts": 3, "base_ms": 20, "cap_ms": 100, "idempotent": True}
    with Program(chapter) as program, _protected(chapter, dependency, {"retry": retry}):
        # The breaker would end the outage for the pods at once. Here the budget alone has to.
        body = {"mode": "forced_closed", "expires_in_s": 300, "reason": "To see what retries do"}
        program.write("POST", f"breakers/{dependency}/override", body)
        try:
            with _vendor(chapter, dependency, 8, 5):
                some = _calls(chapter, dependency)
            with _vendor(chapter, dependency, 100, 5):
                none = _calls(chapter, dependency)
        finally:
            ended = {"reason": "The test of retries is over"}
            program.write("POST", f"breakers/{dependency}/end-override", ended).raise_for_status()
    # Where the vendor's limit refused a call, nothing was sent.
    some, none = ([answer for answer in answers if answer["attempts"]] for answers in (some, none))
    helped = sum(answer["attempts"] > 1 and not answer["reason"] for answer in some)
    attempts = sum(answer["attempts"] for answer in none)
    if not helped:
        raise CheckFailed(f"no retry helped in {len(some)} calls of which 8 % fail")
    # Windows of the budget that began before the outage count too, so the bound is that of the design.
    most = 1.2 * len(none) + len(PODS)
    if attempts > most:
        raise CheckFailed(f"{attempts} attempts for {len(none)} calls to a vendor that is down")
    return (
        f"8 % fail: retries saved {helped} of {len(some)} calls; all fail: {attempts} attempts for"
        f" {len(none)} calls, at most {most:.0f}"
    )


def fallback_chain(chapter: Chapter) -> str:
    """A vendor fails: its last result is used while it is young, then the default. The page counts it."""
    dependency = "ledger-db"
    with _protected(chapter, dependency, {"bulkhead": {}}), _client(chapter) as client:
        found = list[tuple[Answer, Answer]]()
        # Again if this machine paused for longer than a result is young.
        chapter.until(
            "the last result, from the cache",
            lambda: _fails_after_success(chapter, client, dependency, found),
            within_s=30,
        )
        usual, cached = found[-1]
        with _vendor(chapter, dependency, 100, 5):
            default_ms = chapter.until(
                "the default answer",
                lambda: _call(client, dependency, CallTier.STANDARD)["source"] == "default",
                within_s=FRESH_S + 2,
            )
            chapter.until(
                "used fallbacks on the page of the breaker",
                lambda: _counts_fallbacks(client, chapter.browser("viewer"), dependency),
                within_s=20,
            )
        chapter.until(
            "the vendor to be asked again",
            lambda: _call(client, dependency, CallTier.STANDARD)["source"] == dependency,
            within_s=30,
        )
    if (usual["source"], cached["source"], cached["cached"]) != (dependency, "cache", True):
        raise CheckFailed(f"first {usual}, then {cached}")
    return (
        f"the vendor failed ({cached['reason']}): the last result was used, after {default_ms:.0f} ms the"
        " default, and the vendor again after it recovered"
    )


def shed_by_tier(chapter: Chapter) -> str:
    """One pod is under pressure: it refuses a free tenant, and serves an enterprise tenant."""
    with Program(chapter) as program, _client(chapter) as client:
        revision = _observe(program, 0)
        try:
            _applied(chapter, revision)
            client.post(
                f"/strain?seconds={STRAIN_S * chapter.demo.patience:.0f}", timeout=5
            ).raise_for_status()
            shed_ms = chapter.until(
                f"{POD} to shed a free tenant", lambda: _shed(client, PENNY), within_s=STRAIN_S
            )
            served = [client.get("/search", headers={"X-Tenant": STORYTELLER}) for _ in range(5)]
            chapter.until(
                f"the page of {POD} to display what it sheds",
                lambda: any(words in chapter.browser("viewer").read(f"/servers/{POD}") for words in _LEVELS),
                within_s=STRAIN_S,
            )
            back_ms = chapter.until(
                f"{POD} to serve the free tenant again", lambda: not _shed(client, PENNY), within_s=60
            )
        finally:
            revision = _observe(program, OBSERVE_SHEDDING_S)
        _applied(chapter, revision)
    if refused := [answer.status_code for answer in served if answer.status_code != 200]:
        raise CheckFailed(f"an enterprise tenant got {refused}")
    return (
        f"{POD} refused a free tenant after {shed_ms:.0f} ms and served all {len(served)} requests"
        f" of an enterprise tenant; {back_ms:.0f} ms later it served both"
    )


def _counts_fallbacks(client: httpx.Client, browser: Browser, dependency: str) -> bool:
    """Whether the page displays that fallbacks are used, with a figure above 0, while they are."""
    for _ in range(5):
        _call(client, dependency, CallTier.STANDARD)
    shown = _FALLBACKS.search(browser.read(f"/breakers/{dependency}"))
    return shown is not None and shown[1] != "0"


def _fails_after_success(
    chapter: Chapter, client: httpx.Client, dependency: str, found: list[tuple[Answer, Answer]]
) -> bool:
    """Whether the vendor answers, then fails, and its answer is used again. Both answers are ``found``."""
    usual = _call(client, dependency, CallTier.STANDARD)
    with _vendor(chapter, dependency, 100, 5):
        failed = _call(client, dependency, CallTier.STANDARD)
    found.append((usual, failed))
    return usual["source"] == dependency and bool(failed["cached"])


def _shed(client: httpx.Client, tenant: str) -> bool:
    answer = client.get("/search", headers={"X-Tenant": tenant})
    return answer.status_code == 503 and answer.json().get("reason") == Reason.SHED


def _client(chapter: Chapter) -> httpx.Client:
    # A pod closes connections that are idle for 5 s. Under pressure it does so late, and a request may meet
    # the end of its connection.
    fresh = httpx.Limits(max_keepalive_connections=0)
    return httpx.Client(base_url=chapter.demo.url(POD), timeout=30.0, trust_env=False, limits=fresh)


def _call(client: httpx.Client, dependency: str, tier: CallTier) -> Answer:
    answer = client.get(
        f"/guarded/{dependency}", params={"tier": tier}, headers={"X-Tenant": STORYTELLER}
    ).raise_for_status()
    found: Answer = answer.json()
    return found


def _calls(chapter: Chapter, dependency: str) -> list[Answer]:
    """``CALLS`` calls, spread over the pods."""
    answers: list[Answer] = []
    for pod in PODS:
        with httpx.Client(base_url=chapter.demo.url(pod), timeout=30.0, trust_env=False) as client:
            answers += [_call(client, dependency, CallTier.STANDARD) for _ in range(CALLS)]
    return answers


def _refused(answers: list[Answer], reason: Reason) -> int:
    return sum(answer["reason"] == reason for answer in answers)


@contextmanager
def _protected(chapter: Chapter, dependency: str, protection: dict[str, Any]) -> Iterator[None]:
    """All pods apply ``protection`` meanwhile."""
    path = f"dependencies/{dependency}/protection"
    with Program(chapter) as program:
        try:
            _applied(chapter, _patch(program, path, protection))
            yield
        finally:
            revision = _patch(program, path, "off")
        _applied(chapter, revision)


def _observe(program: Program, seconds: int) -> int:
    """Pods only observe what they would shed, for so long from now on."""
    path = "configuration/protection"
    return _patch(program, path, {"shedding": {}}, observe_for_s={"shedding": seconds})


def _patch(program: Program, path: str, protection: dict[str, Any] | str, **more: Any) -> int:
    body = {"protection": protection, "reason": "The demo shows what protects a pod", **more}
    read = program.get(path.rpartition("/")[0])
    # What was read: a dependency by its version, the configuration by its revision.
    headers = {"If-Match": f'"{read.get("version") or read["revision"]}"'}
    return int(program.write("PATCH", path, body, **headers).raise_for_status().json()["revision"])


def _applied(chapter: Chapter, revision: int) -> None:
    """Wait until every pod decides by this revision."""
    chapter.until(
        f"every pod to apply revision {revision}",
        lambda: all(chapter.ask(pod, "search", STORYTELLER).revision >= revision for pod in PODS),
        within_s=10,
    )


@contextmanager
def _vendor(chapter: Chapter, dependency: str, failure_percent: int, latency_ms: int) -> Iterator[None]:
    """The vendor behaves like this meanwhile."""
    usual = next(played for played in DEPENDENCIES if played.name == dependency)
    chapter.demo.switch(dependency, failure_percent=failure_percent, latency_ms=latency_ms)
    try:
        yield
    finally:
        chapter.demo.switch(dependency, failure_percent=0, latency_ms=usual.latency_ms)
