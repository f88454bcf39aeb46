"""The rest of the budgets that a call spends: asked in Redis, without a charge."""

from collections.abc import Awaitable, Callable, Iterable, Iterator

from msgspec import Struct

from fuseboard.batching.account_domains import AccountDomains
from fuseboard.batching.demand import LimitRef
from fuseboard.batching.domains import LimitDomain, RequestDomains, demand_of
from fuseboard.batching.redis_question import Domain, RedisAnswer
from fuseboard.batching.settlements import Settlements
from fuseboard.batching.standing_demand import StandingDemand
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import BudgetLimit, limits_of
from fuseboard.subject import NO_SUBJECT, Costs

#: The name of a counter that counts nothing: no limit can have it.
UNUSED = "(explain)"

#: Asks a domain for free: its demand, and a key that no limit has. ``None`` without an answer of Redis.
Probe = Callable[[Domain, StandingDemand, str], Awaitable[RedisAnswer | None]]


class KnownBudget(Struct, frozen=True):
    """A budget with its owner: an account, a dependency or a tenant."""

    kind: str
    owner: str
    limit: BudgetLimit
    #: Less than 0 if more was spent than its amount; ``None`` when Redis does not answer.
    left: int | None

    @property
    def refuses(self) -> bool:
        """Calls that cost its measure are refused until its period ends."""
        return self.limit.stops and self.left is not None and self.left <= 0


class _Asked(Struct, frozen=True):
    kind: str
    owner: str
    domain: LimitDomain
    demand: StandingDemand
    unused_key: str


class BudgetInspection(Struct, frozen=True):
    """Budgets in the order in which they decide: of the tenant, of the account, of the dependency."""

    environment: str
    requests: RequestDomains
    accounts: AccountDomains
    settlements: Settlements

    async def ask(self, snapshot: Snapshot, tenant: str, dependency: str, probe: Probe) -> list[KnownBudget]:
        """All budgets of a call or of a request, whatever it costs."""
        found = []
        for asked in self._domains(snapshot, tenant, dependency):
            budgets = [(ref, ref.limit) for ref in asked.demand.refs if isinstance(ref.limit, BudgetLimit)]
            costs = _one_each(limit for _, limit in budgets)
            demand = demand_of([ref for ref, _ in budgets], costs)
            answer = await probe(asked.domain, demand, asked.unused_key)
            rest = answer.left if answer is not None else ()
            for place, (_, limit) in enumerate(budgets):
                # A quota that is inherited has the name of its owner before its own.
                above = limit.name.rpartition("/")[0] if asked.kind == "tenant" else ""
                left = limit.left_of(rest[place]) if place < len(rest) else None
                found.append(KnownBudget(asked.kind, above or asked.owner, limit, left))
        return found

    def _domains(self, snapshot: Snapshot, tenant: str, dependency: str) -> Iterator[_Asked]:
        if tenant:
            rules = snapshot.quotas_of(tenant)
            costs = _one_each(quota.limit for quota in rules.of(tenant))
            unused = keys.tenant_quota(self.environment, rules.root or tenant, UNUSED)
            if costs:
                domain, demand = self.requests.of_tenant(snapshot.policy, tenant, rules, costs, NO_SUBJECT)
                yield _Asked("tenant", tenant, domain, demand, unused)
        account = snapshot.account_of(dependency) if dependency else None
        if account is not None:
            costs = _one_each(limits_of(account.budgets))
            of_account = self.accounts.of_call(snapshot, dependency, costs)
            if of_account is not None:
                unused = keys.account_budget(self.environment, account.name, UNUSED)
                yield _Asked("account", account.name, *of_account, unused)
        known = snapshot.dependency(dependency) if dependency else None
        if known is not None and known.budgets:
            limits = limits_of(known.budgets)
            refs = [
                LimitRef(limit, keys.dependency_budget(self.environment, dependency, limit.budget))
                for limit in limits
            ]
            domain = LimitDomain(f"d:{dependency}", self.settlements)
            unused = keys.vendor_limit(self.environment, dependency, UNUSED)
            yield _Asked("dependency", dependency, domain, demand_of(refs, _one_each(limits)), unused)


def _one_each(limits: Iterable[object]) -> Costs:
    """One of each measure that these budgets count."""
    measures = {limit.measure for limit in limits if isinstance(limit, BudgetLimit)}
    return tuple([(measure, 1) for measure in sorted(measures)])
