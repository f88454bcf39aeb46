"""Calls to language models: two lines guard them, and every one of them is settled, however it ends."""

import time

import httpx

import fuseboard
from fuseboard import blocking
from fuseboard.llm.httpx import BlockingLlmTransport
from tools.demo.model_formats import CACHED, WRITTEN, input_of
from tools.demo.model_scenario import ASSISTANT, GPT, MINI, OPENAI, OPENAI_MINI, SONNET, STORY_TOKENS
from tools.demo.model_vendor import Station
from tools.demo.scenario import STORYTELLER
from tools.demo.story.asking import (
    Assistant,
    another_pod,
    assistant_of,
    have_record,
    micro_usd_of,
    settled,
    spent_of,
    tokens_of,
)
from tools.demo.story.chapter import Chapter, CheckFailed

#: Accounts have these budgets in money.
_MONEY = {GPT: "openai-month", SONNET: "anthropic-day"}
_FAILURES = 3
_QUESTION = "Please read this conversation, and write a summary of it for a colleague."
#: Words of a stream that its reader takes, and the most that it may have.
_PARTS, _MOST = 20, 400
#: Corrections of calls that ended before have arrived.
_SETTLED_S = 0.5
_WATCHED_S = 5.0
#: The vendor is tried again once a minute.
_TRIED_S = 90.0


def llm_two_lines(chapter: Chapter) -> str:
    """Both clients, streamed and not: money of the account and tokens of the tenant are the vendor's bill."""
    with assistant_of(chapter) as assistant:
        have_record(assistant, STORYTELLER, STORY_TOKENS)
        billed = {GPT: 0, SONNET: 0}
        tokens, before_tokens = 0, spent_of(STORY_TOKENS)
        before = {model: spent_of(budget) for model, budget in _MONEY.items()}
        for model in billed:
            for stream in (False, True):
                was = assistant.station(model)
                _answered(assistant, model, tenant=STORYTELLER, stream=stream)
                now = assistant.station(model)
                billed[model] += micro_usd_of(model, was, now)
                tokens += tokens_of(model, was, now)
        settled(
            chapter,
            f"budgets to have counted what the vendor charged: {billed}, {tokens} tokens",
            lambda: (
                {model: spent_of(budget) - before[model] for model, budget in _MONEY.items()},
                spent_of(STORY_TOKENS) - before_tokens,
            ),
            lambda found: found == (billed, tokens),
        )
    money = ", ".join(f"{amount} micro-USD of {model}" for model, amount in billed.items())
    return (
        f"2 clients, 4 calls, streamed and not: {money} in the budgets of their accounts, and {tokens} tokens"
        " in that of the tenant, each as the vendor charged them"
    )


def llm_stream_settled(chapter: Chapter) -> str:
    """The reader leaves a stream: the input and what came are charged, not the reserve."""
    budget = _MONEY[SONNET]
    with assistant_of(chapter) as assistant:
        for _ in range(3):
            # The pod learns how long the words of this model are.
            _answered(assistant, SONNET, stream=True, max_tokens=_MOST)
        time.sleep(_SETTLED_S)
        before = spent_of(budget)
        with assistant.behaving(SONNET, word_ms=100):
            got = assistant.ask(SONNET, text=_QUESTION, stream=True, leave_after=_PARTS, max_tokens=_MOST)
        if got.parts != _PARTS or got.error or got.refused_because:
            raise CheckFailed(f"the stream was not left after {_PARTS} parts: {got}")
        least, most = (_charge_of(int(_PARTS * share)) for share in (0.8, 1.3))
        took_ms = settled(
            chapter,
            f"{least} to {most} micro-USD to be charged",
            lambda: spent_of(budget) - before,
            lambda found: least <= found <= most,
        )
        charged = spent_of(budget) - before
    reserve = _charge_of(_MOST)
    return (
        f"left after {_PARTS} of up to {_MOST} words: {charged} micro-USD, where the input and these"
        f" words cost {_charge_of(_PARTS)}, and all of them {reserve}; {took_ms:.0f} ms later"
    )


def _charge_of(words: int) -> int:
    """What the vendor takes for the question and so many words, in micro-USD."""
    asked = input_of({"messages": [{"role": "user", "content": _QUESTION}]})
    used = Station(fresh=asked - CACHED - WRITTEN, cached=CACHED, written=WRITTEN, output=words)
    return micro_usd_of(SONNET, Station(), used)


def llm_midstream(chapter: Chapter) -> str:
    """The vendor fails within streams: clients get their own errors, and the breaker opens, then closes."""
    with assistant_of(chapter) as assistant:
        with assistant.behaving(GPT, fails_after=5):
            before = spent_of(_MONEY[GPT])
            errors = [assistant.ask(GPT, stream=True, max_tokens=200) for _ in range(_FAILURES)]
            if any(got.error != "APIError" or got.parts < 5 for got in errors):
                raise CheckFailed(f"clients did not get 5 parts and an error of theirs: {errors}")
            opened_ms = chapter.until(
                f"the breaker of {OPENAI} to open",
                lambda: assistant.ask(GPT, stream=True).refused_because == "breaker_open",
                within_s=15,
            )
            spent = spent_of(_MONEY[GPT]) - before
        closed_ms = chapter.until(
            "answers again", lambda: assistant.ask(GPT, stream=True).text != "", within_s=60
        )
    return (
        f"{_FAILURES} streams broke off after 5 words with status 200: {errors[0].error} each time, {spent}"
        f" micro-USD for what came, and {OPENAI} is open {opened_ms:.0f} ms later; with the vendor well,"
        f" answers after {closed_ms / 1000:.1f} s"
    )


def llm_fallback(chapter: Chapter) -> str:
    """GPT fails, then Claude too: the flags of each answer say where it comes from."""
    with assistant_of(chapter) as assistant:
        usual = assistant.chain(GPT)
        with assistant.behaving(GPT, status=503, code="server_error"):
            other = assistant.chain(GPT)
            with assistant.behaving(SONNET, status=529, code="overloaded_error"):
                cached = assistant.chain(GPT)
                default_ms = chapter.until(
                    "the default answer, because the last one is old",
                    lambda: assistant.chain(GPT)["source"] == "default",
                    within_s=120,
                )
        back_ms = chapter.until(
            "GPT to answer again", lambda: not assistant.chain(GPT)["is_fallback"], within_s=60
        )
    found = [
        (answer["source"], answer["is_fallback"], answer["is_cached"], answer["is_degraded"])
        for answer in (usual, other, cached)
    ]
    expected = [
        (OPENAI, False, False, False),
        (SONNET, True, False, False),
        ("cache", True, True, True),
    ]
    if found != expected:
        raise CheckFailed(f"source, is_fallback, is_cached, is_degraded: {found}, not {expected}")
    return (
        f"GPT answers; it fails ({other['reason']}): {SONNET} with is_fallback; that fails too: the last"
        f" answer with is_cached and is_degraded, then the default after {default_ms / 1000:.0f} s; GPT again"
        f" {back_ms / 1000:.1f} s after it is well"
    )


def llm_account_stop(chapter: Chapter) -> str:
    """An account has no credit, as two pods hear: a third one stops too, and the other account answers."""
    with (
        assistant_of(chapter) as assistant,
        another_pod(chapter, f"{ASSISTANT}-2") as second,
        another_pod(chapter, f"{ASSISTANT}-3") as third,
    ):
        with assistant.behaving(GPT, MINI, status=429, code="insufficient_quota"):
            first = assistant.ask(GPT)
            # Another pool of the same account, which has answered until now.
            mini = assistant.ask(MINI)
            if not mini.refused_because:
                raise CheckFailed(f"{MINI} of the same account was called: {mini}, after {first}")
            # One pod stops alone: it may have a wrong key. When another one hears it too, all stop, with all
            # pools: nobody has called this one.
            _ask_once(second, chapter, GPT)
            stopped_ms = chapter.until(
                "a pod that has called no vendor to stop",
                lambda: _refused_by(third) == mini.refused_because,
                within_s=5,
            )
            before = _received(assistant)
            until, refused = time.monotonic() + _WATCHED_S, 0
            while time.monotonic() < until:
                refused += sum(bool(assistant.ask(model).refused_because) for model in (GPT, MINI))
                refused += bool(_refused_by(third))
                time.sleep(0.05)
            asked = _received(assistant) - before
            answer = assistant.chain(GPT)
        if asked > 1:
            raise CheckFailed(f"{asked} calls of an account without credit in {_WATCHED_S:.0f} s")
        if answer["source"] != SONNET:
            raise CheckFailed(f"the other account does not answer: {answer}")
        back_ms = chapter.until(
            "the account to be tried, and served", lambda: assistant.ask(MINI).text != "", within_s=_TRIED_S
        )
        chapter.until("the third pod to be served", lambda: not _ask_once(third, chapter, MINI), within_s=10)
    return (
        f"insufficient_quota for two pods: {MINI} of the same account is refused"
        f" ({mini.refused_because}), and a third pod, which has called no vendor, stops {stopped_ms:.0f} ms"
        f" later; {refused} calls refused in {_WATCHED_S:.0f} s, {asked} reached the vendor, and {SONNET}"
        f" answered; with credit, one call tried, and all are served after {back_ms / 1000:.0f} s, also by"
        " the third pod"
    )


def _refused_by(agent: blocking.Agent) -> str:
    """Why this pod would refuse a call now, or nothing. It calls nobody."""
    try:
        with agent.call(OPENAI_MINI):
            return ""
    except fuseboard.Refused as refused:
        return str(refused.decision.reason)


def _ask_once(agent: blocking.Agent, chapter: Chapter, model: str) -> str:
    """Call the vendor without retries; return why the call was refused here, or nothing if it answered."""
    body = {"model": model, "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 20}
    with httpx.Client(transport=BlockingLlmTransport(agent), trust_env=False) as client:
        try:
            client.post(f"{chapter.demo.url('vendor')}/v1/chat/completions", json=body)
        except fuseboard.Refused as refused:
            return str(refused.decision.reason)
    return ""


def _received(assistant: Assistant) -> int:
    return sum(assistant.station(model).received for model in (GPT, MINI))


def _answered(assistant: Assistant, model: str, **more: object) -> int:
    """Ask, and return the letters of the answer. Raises ``CheckFailed`` without one."""
    got = assistant.ask(model, **more)
    if got.error or got.refused_because or not got.text:
        raise CheckFailed(f"{model} did not answer: {got}")
    return len(got.text)
