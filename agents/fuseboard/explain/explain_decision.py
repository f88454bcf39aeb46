"""Show which rules apply to a call, what is left of them, and what the next decision is."""

from msgspec.structs import replace

from fuseboard.agent_api.arguments import harmless
from fuseboard.configuration.snapshot import TenantRules
from fuseboard.contract.limits import service_rule
from fuseboard.explain.dry_run import inspecting
from fuseboard.explain.explain_call import explain_call
from fuseboard.explain.explanation import Explained, Explanation, explanation, waiting
from fuseboard.explain.found_configuration import FoundConfiguration, find_configuration
from fuseboard.settings import AgentSettings
from fuseboard.store import Store, open_store
from fuseboard.subject import Costs, Subject


async def explain(
    settings: AgentSettings, *, tenant: str, dependency: str, subject: Subject, costs: Costs
) -> Explanation:
    """Raises ``Misconfigured`` when there is no configuration, in Redis or on disk.

    Takes a few seconds if Redis does not answer.
    """
    found = await find_configuration(settings, tenant=tenant)
    store = open_store(settings.redis_url)
    try:
        if dependency:
            return await explain_call(found, store, dependency, tenant, costs)
        return await _explain_request(found, store, settings.service, tenant, subject, costs)
    finally:
        await store.close()


async def _explain_request(
    found: FoundConfiguration, store: Store, service: str, tenant: str, subject: Subject, costs: Costs
) -> Explanation:
    subject = harmless(subject, found.snapshot.tuning.ipv6_prefix)
    if tenant:
        rules = found.snapshot.quotas_of(tenant)
        about, facts = f"a request of tenant {tenant!r}", _facts(rules)
        limits = tuple(quota.limit for quota in rules.of(tenant))
    else:
        about, facts = "a request without a tenant", ()
        limits = found.snapshot.policy.subject_limits
    limits += tuple(
        replace(limit, name=service_rule(limit.name)) for limit in found.snapshot.policy.service_limits
    )
    async with inspecting(found, store, service=service) as inside:
        expected = await inside.request(tenant, costs, subject)
        budgets = await inside.budgets(tenant=tenant)
        return explanation(found, inside, Explained(about, facts, limits, subject, costs), expected, budgets)


def _facts(rules: TenantRules) -> tuple[str, ...]:
    known = "" if rules.known else ", not registered: the default tier"
    tier = f"tenant         tier {rules.tier}{known}{', suspended' if rules.suspended else ''}"
    parents = ", ".join(repr(parent) for parent in dict.fromkeys(quota.tenant for quota in rules.inherited))
    above = (f"belongs to     {parents}, whose quotas also apply",) if parents else ()
    return (tier, *waiting(rules.wait_ms), *above)
