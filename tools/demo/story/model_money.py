"""Money of calls to language models: a ledger that is the vendor's bill."""

from controlplane.phrases import usd
from tools.demo.browser import text_of
from tools.demo.model_scenario import GPT, HAIKU, MINI, SONNET
from tools.demo.scenario import PENNY
from tools.demo.story.asking import all_tokens_of, assistant_of, micro_usd_of
from tools.demo.story.chapter import Chapter, CheckFailed
from tools.demo.story.program import Program

_ROUNDS = 3


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
