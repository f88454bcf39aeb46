"""Money of calls to language models: a budget that ends, and a ledger that is the vendor's bill."""

import time

from controlplane.phrases import usd
from tools.demo.browser import text_of
from tools.demo.model_scenario import GPT, HAIKU, LARGE, MINI, SONNET, STORY_AMOUNT, STORY_BUDGET
from tools.demo.scenario import PENNY, STORYTELLER
from tools.demo.story.asking import (
    all_tokens_of,
    assistant_of,
    have_record,
    micro_usd_of,
    settled,
    spent_of,
)
from tools.demo.story.chapter import Chapter, CheckFailed
from tools.demo.story.program import Program

#: Answers of so many words cost up to 0.48 and 0.05 USD.
_LONG, _SHORT = 3_000, 300
_MOST_CALLS = 400
_WARNED = 0.8
_HOUR_S = 3_600
#: The checkpoint needs less of an hour than this.
_NEEDED_S = 40
_ROUNDS = 3
#: Within this time, the correction of a call reaches Redis.
_CORRECTED_S = 0.2


def llm_budget(chapter: Chapter) -> str:
    """10 USD an hour: the page warns from 8 on, and at 10 no further call is made, until it is raised."""
    with assistant_of(chapter) as assistant, Program(chapter) as program:
        # Only now: the jobs of the assistant take up to a minute to end.
        _leave_time()
        have_record(assistant, STORYTELLER, STORY_BUDGET)
        before, was = spent_of(STORY_BUDGET), assistant.station(LARGE)
        warned_at, calls, long = 0, 0, _LONG
        while True:
            spent = _settled_spent()
            if not warned_at and spent >= _WARNED * STORY_AMOUNT:
                warned_at = spent
                _check_page(chapter, warns=True)
            if not warned_at:
                _check_page(chapter, warns=False)
            got = assistant.ask(LARGE, tenant=STORYTELLER, max_tokens=long)
            if got.refused_because and long == _LONG:
                # A long answer does not fit any more; a short one does.
                long = _SHORT
                continue
            if got.refused_because or got.error or calls > _MOST_CALLS:
                break
            calls += 1
        if got.refused_because != "budget_spent" or not got.rule.endswith(f"budget:{STORY_BUDGET}"):
            raise CheckFailed(f"after {calls} calls and {spent_of(STORY_BUDGET)} micro-USD: {got}")
        now = assistant.station(LARGE)
        # Each call is rounded up.
        billed = micro_usd_of(LARGE, was, now)
        settled(
            chapter,
            f"the budget to have counted {billed} micro-USD",
            lambda: (spent_of(STORY_BUDGET) - before, assistant.figures()["local"]),
            lambda found: billed <= found[0] <= billed + calls,
        )
        stopped_at = spent_of(STORY_BUDGET)
        if not warned_at or not 0.95 * STORY_AMOUNT <= stopped_at <= STORY_AMOUNT:
            raise CheckFailed(f"warned at {warned_at}, stopped at {stopped_at} of {STORY_AMOUNT} micro-USD")
        raised = {"amount": 2 * STORY_AMOUNT, "minutes": 60, "reason": "The story goes on"}
        version = {"If-Match": f'"{program.get(f"budgets/{STORY_BUDGET}")["version"]}"'}
        program.write("POST", f"budgets/{STORY_BUDGET}/raise", raised, **version).raise_for_status()
        again_ms = chapter.until(
            "calls under the raised budget",
            lambda: assistant.ask(LARGE, tenant=STORYTELLER, max_tokens=_SHORT).text != "",
            within_s=10,
        )
    return (
        f"{calls} calls: the page warns at {usd(warned_at)}, and calls are refused (budget_spent) at"
        f" {usd(stopped_at)} of {usd(STORY_AMOUNT)}; raised for an hour, answers {again_ms:.0f} ms later"
    )


def _settled_spent() -> int:
    """Without what calls have reserved that have ended."""
    found = -1
    while found != (found := spent_of(STORY_BUDGET)):
        time.sleep(_CORRECTED_S)
    return found


def _leave_time() -> None:
    """The budget is of a calendar hour: begin in the next one if this one is nearly over."""
    left_s = _HOUR_S - time.time() % _HOUR_S
    if left_s < _NEEDED_S:
        time.sleep(left_s + 1)


def _check_page(chapter: Chapter, *, warns: bool) -> None:
    page = text_of(chapter.browser("viewer").read("/budgets"))
    row = page[page.find(STORY_BUDGET) :].partition("storyteller-tokens")[0][:400]
    if ("Above 80 %" in row) != warns:
        raise CheckFailed(f"the page of budgets says {row!r}")


def costs_ledger(chapter: Chapter) -> str:
    """What the page of costs displays of a tenant is the vendor's bill, to the last token and micro-USD."""
    with assistant_of(chapter) as assistant, Program(chapter) as program:
        if lines := program.get(f"costs?by=model&tenant={PENNY}")["lines"]:
            raise CheckFailed(f"{PENNY} has costs already: {lines}")
        money, tokens, calls = dict[str, int](), 0, 0
        for _ in range(_ROUNDS):
            for model in (GPT, MINI, SONNET, HAIKU):
                for stream in (False, True):
                    was = assistant.station(model)
                    got = assistant.ask(model, tenant=PENNY, stream=stream, max_tokens=120)
                    if not got.text:
                        raise CheckFailed(f"{model} did not answer: {got}")
                    now = assistant.station(model)
                    money[model] = money.get(model, 0) + micro_usd_of(model, was, now)
                    tokens, calls = tokens + all_tokens_of(was, now), calls + 1
        took_ms = assistant.confirmed()
        lines = program.get(f"costs?by=model&tenant={PENNY}")["lines"]
        found = {line["name"]: line["micro_usd"] for line in lines}
        counted = sum(line["fresh"] + line["cached"] + line["written"] + line["output"] for line in lines)
        if (found, counted, sum(line["calls"] for line in lines)) != (money, tokens, calls):
            raise CheckFailed(f"the ledger has {found} and {counted} tokens, the bill {money} and {tokens}")
        total = usd(sum(money.values()))
        page = text_of(chapter.browser("viewer").read(f"/costs?by=model&tenant={PENNY}"))
        if f"{total} for {calls} calls" not in page:
            raise CheckFailed(f"the page does not say {total} for {calls} calls: {page[:600]}")
        overview = text_of(chapter.browser("viewer").read("/"))
        if "Calls to models cost" not in overview:
            raise CheckFailed("the overview does not say what calls to models cost today")
    return (
        f"{calls} calls to {len(money)} models: the page says {total} and {tokens:,} tokens, exactly the"
        f" vendor's bill, {took_ms / 1000:.0f} s after the last one; the overview has the cost of today"
    )
