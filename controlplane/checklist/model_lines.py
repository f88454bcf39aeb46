"""Language models: rates, tokens, money, and a second model."""

from controlplane.checklist.lines import Answer, Item, Verdict, each, listed, ok_if
from controlplane.checklist.read_state import CheckedDependency, State
from controlplane.policies.models import Kind

_CALLS = "calls"
_NO_MODEL = "No dependency is an LLM API."


def _models(state: State) -> list[CheckedDependency]:
    return [one for one in state.dependencies if one.row.kind == Kind.LLM]


def _measures(one: CheckedDependency) -> set[str]:
    """Measures that the vendor's limits of a model count."""
    return {row.measure for row in one.row.vendor_limits.all()}


def _rates(state: State) -> Answer:
    models = _models(state)
    return each(
        [one.name for one in models if not _measures(one)],
        models,
        "have no vendor limit",
        "All have a vendor limit",
        worst=Verdict.MISSING,
        none=_NO_MODEL,
    )


def _tokens(state: State) -> Answer:
    models = _models(state)
    if silent := [one.name for one in models if any("token" in measure for measure in one.uncharged)]:
        return Verdict.ATTENTION, f"calls of {listed(silent)} state no tokens, so the limit counts nothing"
    return each(
        [one.name for one in models if not any("token" in measure for measure in _measures(one))],
        models,
        "have no limit of tokens",
        "All have a limit of tokens",
        none=_NO_MODEL,
    )


def _costs(state: State) -> Answer:
    models = _models(state)
    if not models:
        return Verdict.UNCHECKED, _NO_MODEL
    limits = [row for _, row in (*state.vendor_limits, *state.tier_quotas) if row.period]
    budgets = [row for row in limits if row.measure != _CALLS and "token" not in row.measure]
    if not budgets:
        return Verdict.MISSING, "No limit counts money."
    warned = sum(row.warn_percent > 0 for row in budgets)
    found = f"{len(budgets)} budgets, {warned} with a warning"
    if silent := [one.name for one in models if {row.measure for row in budgets} & one.uncharged]:
        return Verdict.ATTENTION, f"{found}; calls of {listed(silent)} state no cost, so they spend nothing"
    return ok_if(warned, found)


def _second_model(state: State) -> Answer:
    models = _models(state)
    names = listed([one.name for one in models])
    if not models:
        return Verdict.UNCHECKED, _NO_MODEL
    return ok_if(len(models) > 1, names, f"only {names}")


GROUPS = {
    "Language models": (
        Item(
            "model-rate",
            "Each model API has the vendor's limit",
            "Add the limits of your contract as vendor limits.",
            "limits.md#limits",
            _rates,
        ),
        Item(
            "model-tokens",
            "Tokens are limited, not only calls",
            "Add a vendor limit with the measure tokens, and let calls reserve an estimate.",
            "limits.md#reserve-an-estimate-settle-the-actual-cost",
            _tokens,
        ),
        Item(
            "model-cost",
            "Spending is limited by hour or day, with a warning before",
            "Add a fixed_window limit in a measure of money, such as micro_usd, with warn_percent 80.",
            "limits.md#what-a-call-costs",
            _costs,
        ),
        Item(
            "model-second",
            "There is a second model to fall back to",
            "Add the fallback model as a dependency, and use it in a fallback chain.",
            "protection.md#fallbacks",
            _second_model,
        ),
        Item(
            "model-chain",
            "The chain ends with a cache and a default answer, and cuts prompts that are too long",
            "Confirm it in the code of the services that call models.",
            "protection.md#a-prompt-that-is-too-long",
            lambda state: (Verdict.CONFIRM, f"{len(_models(state))} model APIs"),
        ),
    ),
}
