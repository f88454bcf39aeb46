"""Which rules bind a call, what is left of them, and what the next decision would be."""

from msgspec.structs import replace

from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.batching.demand import LimitRef
from fuseboard.batching.standing_demand import StandingDemand
from fuseboard.cli.explain.dry_run import Peeker, peeking
from fuseboard.cli.explain.explain_call import explain_call
from fuseboard.cli.explain.explanation import Explanation
from fuseboard.cli.explain.verdict import UNUSED, decide, explanation
from fuseboard.cli.found_configuration import Known, learn
from fuseboard.configuration.snapshot import TenantRules
from fuseboard.contract import keys
from fuseboard.contract.words import Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.settings import AgentSettings
from fuseboard.store import open_store
from fuseboard.subject import Costs, Subject


async def explain(
    settings: AgentSettings, *, tenant: str, dependency: str, subject: Subject, costs: Costs
) -> Explanation:
    """Raises ``Misconfigured`` when no configuration can be found, in Redis or on disk."""
    known = await learn(settings, tenant=tenant)
    store = open_store(settings.redis_url)
    async with peeking(store=store, environment=settings.environment, tuning=known.snapshot.tuning) as peeker:
        answers = DecisionBuilder("this command", peeker.health)
        if dependency:
            return await explain_call(known, peeker, store, answers, dependency, tenant, costs)
        if tenant:
            return await _of_tenant(known, peeker, answers, tenant, subject, costs)
        return await _of_nobody(known, peeker, answers, subject, costs)


async def _of_tenant(
    known: Known, peeker: Peeker, answers: DecisionBuilder, tenant: str, subject: Subject, costs: Costs
) -> Explanation:
    rules = known.snapshot.quotas_of(tenant)
    domain, demand = peeker.requests.of_tenant(tenant, rules, costs, subject)
    if rules.suspended:
        refusal = Refusal(Reason.SUSPENDED, "suspended")
        decision = answers.refuse(known.snapshot, refusal, tenant=tenant)
    else:
        unused = keys.tenant_quota(known.environment, rules.root or tenant, UNUSED)
        answer = await peeker.peek(domain, demand, unused)
        decision = decide(known, answers, demand, answer)
        decision = replace(decision, tenant=tenant)
    facts = [f"tenant         {_standing(rules)}"]
    if parents := dict.fromkeys(quota.tenant for quota in rules.inherited):
        facts.append(
            f"belongs to     {', '.join(repr(parent) for parent in parents)}, whose quotas bind it too"
        )
    return explanation(
        known,
        peeker,
        f"a request of tenant {tenant!r}",
        tuple(facts),
        tuple(quota.limit for quota in rules.of(tenant)),
        demand,
        decision,
        subject,
        costs,
    )


async def _of_nobody(
    known: Known, peeker: Peeker, answers: DecisionBuilder, subject: Subject, costs: Costs
) -> Explanation:
    limits = known.snapshot.policy.subject_limits
    refused: Decision | None = None
    refs: list[LimitRef] = []
    amounts: list[int] = []
    checked: list[LimitStatus] = []
    for domain, demand in peeker.requests.of_subject(known.snapshot, costs, subject):
        unused = keys.subject_limit(known.environment, domain.name.removeprefix("i:"), UNUSED)
        answer = await peeker.peek(domain, demand, unused)
        decision = decide(known, answers, demand, answer)
        refs += demand.refs
        amounts += demand.costs
        checked += decision.limits
        refused = refused or (None if decision.allowed else decision)
    decision = refused or answers.allow(known.snapshot, tuple(checked))
    whole = StandingDemand(tuple(refs), tuple(amounts))
    return explanation(
        known,
        peeker,
        "a request without a tenant",
        (),
        limits,
        whole,
        decision,
        subject,
        costs,
        checked=tuple(checked),
    )


def _standing(rules: TenantRules) -> str:
    known = "" if rules.known else ", not registered: the default tier"
    return f"tier {rules.tier}{known}{', suspended' if rules.suspended else ''}"
