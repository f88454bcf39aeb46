"""Language models: rates, tokens, money, and a second model."""

from collections.abc import Iterator

from controlplane.checklist.lines import Item, Line, Verdict, listed
from controlplane.checklist.read_state import State
from controlplane.policies.models import Kind

_MODELS = "Language models"
_CALLS = "calls"


def lines(state: State) -> Iterator[Line]:
    models = [one for one in state.dependencies if one.row.kind == Kind.LLM]
    none = "No dependency is an LLM API."
    measures = {
        one.name: {row.measure for name, row in state.vendor_limits if name == one.name} for one in models
    }
    yield Item(
        key="model-rate",
        group=_MODELS,
        check="Each model API has the vendor's limit",
        do="Add the limits of your contract as vendor limits.",
        doc="limits.md#limits",
    ).each(
        [name for name, found in measures.items() if not found],
        models,
        wrong="have no vendor limit",
        right="All have a vendor limit",
        worst=Verdict.MISSING,
        none=none,
    )
    item = Item(
        key="model-tokens",
        group=_MODELS,
        check="Tokens are limited, not only calls",
        do="Add a vendor limit with the measure tokens, and let calls reserve an estimate.",
        doc="limits.md#reserve-an-estimate-settle-the-actual-cost",
    )
    unlimited = [name for name, found in measures.items() if not any("token" in measure for measure in found)]
    if silent := [one.name for one in models if any("token" in measure for measure in one.uncharged)]:
        yield item.attention(f"calls of {listed(silent)} state no tokens, so the limit counts nothing")
    else:
        yield item.each(
            unlimited,
            models,
            wrong="have no limit of tokens",
            right="All have a limit of tokens",
            none=none,
        )
    quotas = [row for _, row in state.tier_quotas if row.measure != _CALLS and "token" not in row.measure]
    costs = [row for _, row in state.vendor_limits if row.measure != _CALLS and "token" not in row.measure]
    item = Item(
        key="model-cost",
        group=_MODELS,
        check="Spending is limited by hour or day, with a warning before",
        do="Add a fixed_window limit in a measure of money, such as micro_usd, with warn_percent 80.",
        doc="limits.md#what-a-call-costs",
    )
    if not models:
        yield item.unchecked(none)
    elif budgets := [row for row in (*costs, *quotas) if row.period]:
        warned = sum(row.warn_percent > 0 for row in budgets)
        found = f"{len(budgets)} budgets, {warned} with a warning"
        silent = [one.name for one in models if {row.measure for row in budgets} & one.uncharged]
        if silent:
            found = f"{found}; calls of {listed(silent)} state no cost, so they spend nothing"
        yield item.ok(found) if warned and not silent else item.attention(found)
    else:
        yield item.missing("No limit counts money.")
    item = Item(
        key="model-second",
        group=_MODELS,
        check="There is a second model to fall back to",
        do="Add the fallback model as a dependency, and use it in a fallback chain.",
        doc="protection.md#fallbacks",
    )
    names = listed([one.name for one in models])
    if not models:
        yield item.unchecked(none)
    else:
        yield item.ok(names) if len(models) > 1 else item.attention(f"only {names}")
    yield Item(
        key="model-chain",
        group=_MODELS,
        check="The chain ends with a cache and a default answer, and cuts prompts that are too long",
        do="Confirm it in the code of the services that call models.",
        doc="protection.md#a-prompt-that-is-too-long",
    ).confirm(f"{len(models)} model APIs")
