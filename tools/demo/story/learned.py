"""Limits that follow what a vendor allows: it halves its limit and doubles it again, and one pod lies."""

import html
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import cycle

import httpx

import fuseboard
from controlplane.editing.edits import set_vendor_limit
from controlplane.fleet.stated_limits import stated_limits
from controlplane.policies.models import VendorLimit
from controlplane.suggestions.tasks import look
from fuseboard import blocking
from fuseboard.llm.httpx import BlockingLlmTransport
from tools.demo.browser import Browser, text_of
from tools.demo.model_scenario import ASSISTANT, MINI, OPENAI_MINI, POOLS
from tools.demo.seed import DIRECTOR, ENVIRONMENT
from tools.demo.story.asking import another_pod, assistant_of
from tools.demo.story.chapter import Chapter, CheckFailed
from tools.demo.story.program import Program

#: The limit of the contract, and the floor in percent of it.
LIMIT = next(pool.per_minute["calls"] for pool in POOLS if pool.name == OPENAI_MINI)
_FLOOR_PERCENT = 10
#: More calls per second than the halved limit allows, and than the whole one.
_WANTED_PER_S = 5.0
_FOLLOWED_S, _BACK_S, _WATCHED_S = 15.0, 180.0, 30.0
_MOST_REFUSED = 0.02
_LIES_S = 30.0
#: A liar moves the limit by less than this part of it.
_MOST_MOVED = 0.1

#: What the vendor states in ``learned-suggest``, and for how long two pods hear it.
_STATED, _SEEN_S = 180, 15.0
_LIMIT = "calls-per-minute"
_FIELD = f"limit.{_LIMIT}.limit"
#: The link of the suggestion.
_USE = re.compile(rf'href="([^"]+)">Use {_STATED}</a>')

_CHANGED = re.compile(rf"limits\.followed dependency={OPENAI_MINI} limit=calls-per-minute: \d+ -> (\d+) of")


def learned_limit(chapter: Chapter) -> str:
    """The vendor halves its limit: the fleet follows within 15 s. It doubles it: the fleet is back."""
    with assistant_of(chapter) as assistant, _following(chapter), assistant.behaving(MINI):
        followed = _Followed(chapter)
        assistant.behave(MINI, calls_per_minute=LIMIT)
        assistant.jobs(_WANTED_PER_S, MINI)
        time.sleep(5)
        was = assistant.station(MINI)
        assistant.behave(MINI, calls_per_minute=LIMIT // 2)
        followed_ms = chapter.until(
            f"{LIMIT // 2} of {LIMIT} calls a minute to apply",
            lambda: followed.number() <= LIMIT // 2,
            within_s=_FOLLOWED_S,
        )
        time.sleep(_WATCHED_S)
        now = assistant.station(MINI)
        received, limited = now.received - was.received, now.limited - was.limited
        lowest = followed.number()
        if limited > _MOST_REFUSED * received:
            raise CheckFailed(f"the vendor refused {limited} of {received} calls after it halved its limit")
        assistant.behave(MINI, calls_per_minute=LIMIT)
        back_ms = chapter.until(
            f"all {LIMIT} calls a minute to apply again", lambda: followed.number() >= LIMIT, within_s=_BACK_S
        )
    share = 100 * limited / max(1, received)
    return (
        f"the vendor halves {LIMIT} calls a minute: the fleet follows to {lowest} after"
        f" {followed_ms / 1000:.0f} s, and of {received} calls the vendor refuses {limited}, {share:.1f} %;"
        f" doubled again: {LIMIT} after {back_ms / 1000:.0f} s"
    )


def learned_liar(chapter: Chapter) -> str:
    """One pod hears that the limit is 1, and that all its calls are refused: the limit of the fleet stays."""
    with assistant_of(chapter) as assistant, _following(chapter), assistant.behaving(MINI):
        followed = _Followed(chapter)
        assistant.behave(MINI, calls_per_minute=LIMIT)
        assistant.jobs(_WANTED_PER_S / 2, MINI)
        was = assistant.station(MINI)
        with another_pod(chapter, f"{ASSISTANT}-liar") as agent:
            lies = _lie(agent)
        served = assistant.station(MINI).calls - was.calls
        lowest = followed.lowest()
    if lowest < (1 - _MOST_MOVED) * LIMIT:
        raise CheckFailed(f"the limit of the fleet fell to {lowest} of {LIMIT}")
    if not served:
        raise CheckFailed("no call of the other pod was served meanwhile")
    return (
        f"one pod reports a limit of 1, of 1,000,000,000, and {lies} refusals in {_LIES_S:.0f} s: the limit"
        f" of the fleet stays at {lowest} of {LIMIT}, and the other pod has {served} answers"
    )


def learned_suggest(chapter: Chapter) -> str:
    """The vendor states less than is configured to two pods: an admin uses the suggestion with two clicks."""
    admin = chapter.browser("admin")
    with assistant_of(chapter) as assistant, assistant.behaving(MINI):
        assistant.behave(MINI, calls_per_minute=_STATED)
        assistant.jobs(_WANTED_PER_S / 2, MINI)
        with another_pod(chapter, f"{ASSISTANT}-2") as agent:
            answers = _ask_for_a_while(agent, chapter)
            # The worker looks once: both pods have reported by then.
            chapter.until(f"two pods to report {_STATED}", _is_stated, within_s=30)
            # The worker does this every 5 min.
            look.delay()
            found_ms = chapter.until(
                f"Use {_STATED} on the page of {OPENAI_MINI}", lambda: bool(_offers(admin)), within_s=30
            )
        form = admin.form(html.unescape(_offers(admin)[0]), _FIELD, "reason")
        evidence = form.fields["reason"]
        try:
            saved = admin.send(form)
            row = VendorLimit.objects.get(dependency__name=OPENAI_MINI, name=_LIMIT)
            if saved.status_code != 200 or row.limit != _STATED or _offers(admin):
                raise CheckFailed(f"{row.limit} a minute after the form: {text_of(saved.text)[:300]}")
        finally:
            set_vendor_limit(
                environment=ENVIRONMENT,
                dependency=OPENAI_MINI,
                name=_LIMIT,
                limit=LIMIT,
                expected_version=None,
                reason="The vendor allows it again",
                actor=DIRECTOR,
            )
    return (
        f"{answers} answers to a second pod: {evidence!r} is suggested {found_ms / 1000:.1f} s after the"
        f" worker looked, and used with two clicks: {LIMIT} became {_STATED} calls a minute"
    )


def _is_stated() -> bool:
    stated = stated_limits(ENVIRONMENT).get((OPENAI_MINI, _LIMIT))
    return stated is not None and stated.number == _STATED and stated.is_proven


def _offers(admin: Browser) -> list[str]:
    """The links of the suggestion on the page of the dependency."""
    return _USE.findall(admin.read(f"/breakers/{OPENAI_MINI}"))


def _ask_for_a_while(agent: blocking.Agent, chapter: Chapter) -> int:
    """Calls of another pod to the model; returns the number of answers."""
    answers = 0
    body = {"model": MINI, "messages": [{"role": "user", "content": "A title, please."}], "max_tokens": 20}
    with httpx.Client(transport=BlockingLlmTransport(agent), trust_env=False) as client:
        until = time.monotonic() + _SEEN_S
        while time.monotonic() < until:
            with suppress(fuseboard.Refused):
                answer = client.post(f"{chapter.demo.url('vendor')}/v1/chat/completions", json=body)
                answers += answer.status_code == 200
            time.sleep(0.3)
    return answers


class _Followed:
    """The numbers that the assistant followed since, by its log."""

    def __init__(self, chapter: Chapter) -> None:
        self._log = chapter.demo.processes.logs / f"{ASSISTANT}.log"
        self._from = self._log.stat().st_size

    def _numbers(self) -> list[int]:
        with self._log.open("rb") as log:
            log.seek(self._from)
            return [int(number) for number in _CHANGED.findall(log.read().decode("utf-8", "replace"))]

    def number(self) -> int:
        return (self._numbers() or [LIMIT])[-1]

    def lowest(self) -> int:
        return min(self._numbers(), default=LIMIT)


def _lie(agent: blocking.Agent) -> int:
    """Call for a while, through a proxy that lies; return the number of refusals."""
    stated = cycle(("1", "1000000000", "1"))
    refusals = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal refusals
        refusals += 1
        limit = next(stated)
        headers = {"x-ratelimit-limit-requests": limit, "x-ratelimit-remaining-requests": "0"}
        return httpx.Response(429, headers=headers | {"retry-after-ms": "200"}, request=request)

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        fuseboard.guard(client, agent, OPENAI_MINI)
        until = time.monotonic() + _LIES_S
        while time.monotonic() < until:
            try:
                client.get("http://vendor.example/call")
            except fuseboard.Refused:
                """Such as for the moment that the vendor named."""
            time.sleep(0.2)
    return refusals


@contextmanager
def _following(chapter: Chapter) -> Iterator[None]:
    """An admin lets the limits of vendors follow, for as long as the block runs."""
    with Program(chapter) as program:
        _set_floor(program, _FLOOR_PERCENT)
        try:
            yield
        finally:
            _set_floor(program, 0)


def _set_floor(program: Program, percent: int) -> None:
    body = {"tuning": {"vendor_floor_percent": percent}, "reason": "The demo follows its vendors"}
    program.write("PATCH", "configuration/tuning", body).raise_for_status()
