"""Language models: the chain of sources, the context window, rates, and money."""

from controlplane.checklist.lines import Answer, Item, Verdict, each, listed, ok_if
from controlplane.checklist.read_state import CALL_FIELDS, CheckedDependency, State
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Kind
from controlplane.spending.models import Budget
from controlplane.spending.present_prices import dated_prices
from fuseboard.contract.budgets import AtSpent

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


def _money_limits(state: State) -> list[LimitColumns]:
    """Calendar limits on a cost that is neither calls nor tokens."""
    limits = [row for _, row in (*state.vendor_limits, *state.tier_quotas) if row.period]
    return [row for row in limits if row.measure != _CALLS and "token" not in row.measure]


def _costs(state: State) -> Answer:
    models = _models(state)
    if not models:
        return Verdict.UNCHECKED, _NO_MODEL
    counted: list[LimitColumns | Budget] = [*_money_limits(state), *state.budgets]
    if not counted:
        return Verdict.MISSING, "No limit or budget counts money."
    warned = sum(row.warn_percent > 0 for row in counted)
    found = f"{len(counted)} budgets, {warned} with a warning"
    if silent := [one.name for one in models if {row.measure for row in counted} & one.uncharged]:
        return Verdict.ATTENTION, f"{found}; calls of {listed(silent)} state no cost, so they spend nothing"
    return ok_if(warned, found)


def _stops(state: State) -> Answer:
    """A spent budget ends in something: calls that cost more money than it has are refused, or degraded."""
    limits = [row for row in _money_limits(state) if not row.shadow]
    only_warn = [row.name for row in state.budgets if row.at_100 == AtSpent.WARN]
    stopping = len(state.budgets) - len(only_warn) + len(limits)
    if not _models(state):
        return Verdict.UNCHECKED, _NO_MODEL
    if not stopping:
        return Verdict.MISSING, "No budget stops or degrades calls when it is spent."
    if only_warn:
        return Verdict.ATTENTION, f"{listed(only_warn)} only warn when spent"
    return Verdict.OK, f"{stopping} of them stop or degrade calls"


def _prices(state: State) -> Answer:
    watched = state.status.facts.watched
    if unpriced := [one.model or "a model without a name" for one in watched.unpriced]:
        return Verdict.MISSING, f"Calls without a price within two hours: {listed(unpriced)}"
    return each(
        [row.name for row in state.models if not any(one.applies for one in dated_prices(row))],
        state.models,
        "have no price now",
        "All have a price",
        none="No model is published, so no call has a price.",
    )


def _primary(state: State) -> Answer:
    models = _models(state)
    calls = [one for one in models if one.total is not None and any(one.total.values[: len(CALL_FIELDS)])]
    if not models:
        return Verdict.MISSING, _NO_MODEL
    return ok_if(bool(calls), listed([one.name for one in models]), "nothing has called one in 7 days")


def _pauses(state: State) -> Answer:
    """The fate of a call that is answered 429."""
    models = _models(state)
    return each(
        [one.name for one in models if one.part("retry") is None],
        models,
        "have no retry settings: a call that is answered 429 fails, although the fleet pauses",
        "The fleet pauses as the vendor asks, and calls are repeated",
        none=_NO_MODEL,
    )


def _confirmed(state: State) -> Answer:
    return Verdict.CONFIRM, f"{len(_models(state))} model APIs"


def _second_model(state: State) -> Answer:
    models = _models(state)
    names = listed([one.name for one in models])
    if not models:
        return Verdict.UNCHECKED, _NO_MODEL
    return ok_if(len(models) > 1, names, f"only {names}")


GROUPS = {
    "Language models": (
        Item(
            "model-primary",
            "A model API is configured, and called",
            "Add a dependency of the kind LLM API, and guard the client that calls it.",
            "llm.md",
            _primary,
        ),
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
            "The chain asks a cache after the models: an answer to the same question, or to a similar one",
            "Confirm it in the code of the services that call models.",
            "protection.md#fallbacks",
            _confirmed,
        ),
        Item(
            "model-default",
            "The chain ends with a default answer",
            "Confirm that the last source of each chain needs no model.",
            "protection.md#fallbacks",
            _confirmed,
        ),
        Item(
            "model-context",
            "System, conversation and documents have shares of the context window",
            "Confirm it, or use fuseboard.llm.fit.",
            "llm-helpers.md#messages-that-fit",
            _confirmed,
        ),
        Item(
            "model-shrink",
            "Prompts that are too long are cut, and tried again",
            "Confirm it, or use fuseboard.llm.shrunk.",
            "protection.md#a-prompt-that-is-too-long",
            _confirmed,
        ),
        Item(
            "model-output",
            "The window keeps room for the output, and calls say the most tokens of it",
            "Confirm it: what a call states in max_tokens bounds what limits reserve for it.",
            "llm.md#what-is-reserved-and-what-is-settled",
            _confirmed,
        ),
        Item(
            "model-429",
            "A 429 is repeated after the time that the vendor asks for",
            "Give the dependency retry settings. The fleet pauses in any case.",
            "protection.md#retries",
            _pauses,
        ),
        Item(
            "model-price",
            "Each call has a price, so that its cost is known",
            "Add the models that requests name, with their prices.",
            "costs.md#prices",
            _prices,
        ),
        Item(
            "model-budget",
            "A spent budget stops or degrades calls",
            "Set when it is spent to stop or degrade.",
            "budgets.md",
            _stops,
        ),
    ),
}
