"""Alert rules about what calls to language models cost."""

from typing import Any

from controlplane.alerts.rules.rule import Headline, Rule, Scope, Subject, Threshold, Timing, jumping
from controlplane.ledger.invoices import Drift
from controlplane.ledger.reading import SpendJump, Unpriced
from controlplane.phrases import count, moment, percent, usd
from controlplane.status.watched import Spent

_EACH_UNPRICED = Scope[Unpriced](
    each=lambda status: status.facts.watched.unpriced,
    key=lambda one: f"{one.dependency}/{one.model}",
    subject=lambda _: Subject(kind="costs"),
)
#: Only budgets: a calendar quota of calls is nobody's plan. The alert ``quota`` has those that are spent.
_EACH_BURNING = Scope[Spent](
    each=lambda status: [
        one
        for one in status.facts.watched.spent
        if one.title and one.gone_after is not None and one.share < 1 and one.ends > status.facts.now
    ],
    key=lambda one: one.key,
    subject=lambda one: Subject(kind="budgets", name=one.tenant),
)
_EACH_DRIFT = Scope[Drift](
    each=lambda status: status.facts.watched.drifts,
    key=lambda one: f"{one.account}/{one.month:%Y-%m}",
    subject=lambda _: Subject(kind="invoices"),
)
_JUMP = Scope[SpendJump](
    each=lambda status: [one for one in (status.facts.watched.spend_jump,) if one is not None],
    key=lambda _: "",
    # The page lists tenants. No text names one, so an erasure has nothing to find.
    subject=lambda _: Subject(kind="costs"),
)


def _name(model: str) -> str:
    return model or "A model without a name"


def _gone_after(one: Spent) -> float:
    return 1.0 if one.gone_after is None else one.gone_after


SPENDING_RULES: tuple[Rule[Any], ...] = (
    Rule[Spent](
        key="burn",
        describes="a budget ends long before its period, if spending goes on like this",
        # The part of its period after which it is spent.
        threshold=Threshold(warning=0.5, unit="% of its period", compare="less than", least=0.01, most=1.0),
        value=_gone_after,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=300, resolves_after_s=300),
        needs="budgets",
        scope=_EACH_BURNING,
        text=lambda one: (
            f"Budget {one.title} of {one.owner} ends after {percent(_gone_after(one))} of its period"
        ),
        detail=lambda one: f"That is if spending goes on like this. Its period ends at {moment(one.ends)}.",
        headline=lambda one: Headline(f"Budget {one.title} of {one.owner}", "is", "spent too fast"),
        weight=445,
        handled="A spent budget refuses or degrades calls until its period ends, unless it only warns.",
        runbook="budget-burns",
    ),
    Rule[Drift](
        key="drift",
        describes="the ledger is not what the invoice of a vendor says",
        # The part of the invoice by which the ledger is above or below it.
        threshold=Threshold(warning=0.01, least=0.0001, most=10.0),
        test=lambda one: one.is_whole,
        value=lambda one: one.size,
        names_thresholds=True,
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=60),
        needs="series",
        needs_gateway=False,
        scope=_EACH_DRIFT,
        text=lambda one: (
            f"The ledger of account {one.account} is {percent(one.size)}"
            f" {'above' if one.share > 0 else 'below'} its invoice of {one.month:%B %Y}"
        ),
        detail=lambda one: f"{usd(one.ledger)} in the ledger, {usd(one.invoiced)} on the invoice.",
        headline=lambda one: Headline(f"The invoice of {one.account}", "is", "not what the ledger says"),
        weight=488,
        runbook="invoice-drift",
    ),
    Rule[SpendJump](
        key="spend-jump",
        describes="calls to models cost many times what is usual in this hour of the week",
        # Times the same hour of the last four weeks; at least a few dollars.
        threshold=jumping(warning=3.0, unit="times the usual hour", scale=1.0, least=1.5, most=10_000.0),
        value=lambda jump: jump.times,
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=300),
        needs="series",
        needs_gateway=False,
        scope=_JUMP,
        text=lambda jump: (
            f"Calls to models are unusually expensive: {usd(jump.micro_usd)} in the hour from"
            f" {moment(jump.at)}"
        ),
        detail=lambda jump: (
            f"{usd(jump.usual_micro_usd)} in the mean of the same hour of the last 4 weeks."
            f" {_name(jump.model)} costs most of it."
        ),
        headline=lambda jump: Headline("Calls to models", "are", "unusually expensive"),
        weight=435,
        handled="Budgets and quotas in micro_usd refuse what is over them. Without any, calls go on.",
        runbook="spend-jump",
    ),
    Rule[Unpriced](
        key="unpriced-model",
        describes="calls to a model have no price, so that no budget counts them",
        severity="warning",
        timing=Timing(level=1, fires_after_s=60, resolves_after_s=60),
        needs="series",
        needs_gateway=False,
        scope=_EACH_UNPRICED,
        text=lambda one: f"{_name(one.model)} has no price",
        detail=lambda one: (
            f"{count(one.calls, 'call', grouped=True)} to {one.dependency or 'a vendor'} in this hour and the"
            " last one cost nothing in the ledger and in budgets."
        ),
        headline=lambda one: Headline(_name(one.model), "has", "no price"),
        weight=485,
        runbook="unpriced-model",
    ),
)
