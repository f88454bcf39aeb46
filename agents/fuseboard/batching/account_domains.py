"""The domains of accounts at vendors: what all pools of an account may spend together."""

from msgspec import Struct, field
from msgspec.structs import replace

from fuseboard.batching.demand import LimitRef
from fuseboard.batching.domains import MAX_DEMANDS, LimitDomain, SubjectDemands, binds, demand_of
from fuseboard.batching.kept_demands import KeptDemands
from fuseboard.batching.settlements import Settlements
from fuseboard.batching.standing_demand import StandingDemand
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import limits_of
from fuseboard.contract.budgets import Account
from fuseboard.subject import NO_SUBJECT, Costs


class _Asked(Struct):
    account: Account
    refs: tuple[LimitRef, ...]
    demands: SubjectDemands


class AccountDomains(Struct, frozen=True):
    """Demands by account, made on first use and again when the account changes."""

    environment: str
    settlements: Settlements
    kept: KeptDemands
    #: By name. The configuration bounds their number.
    asked: dict[str, _Asked] = field(default_factory=dict)

    def of_call(
        self, snapshot: Snapshot, dependency: str, costs: Costs
    ) -> tuple[LimitDomain, StandingDemand] | None:
        """The budgets of the account that a call spends; ``None`` for no question."""
        account = snapshot.account_of(dependency)
        if account is None or not account.budgets:
            return None
        asked = self.asked.get(account.name)
        if asked is None or asked.account is not account:
            asked = self.asked[account.name] = self._new(account)
        refs = asked.refs
        demand = asked.demands.demand(
            costs,
            NO_SUBJECT,
            lambda: demand_of([ref for ref in refs if binds(ref.limit, costs, NO_SUBJECT)], costs),
        )
        return (asked.demands.domain, demand) if demand.refs else None

    def _new(self, account: Account) -> _Asked:
        refs = [
            LimitRef(
                # A dependency and an account may have budgets of one name.
                replace(limit, name=f"{account.name}/{limit.name}"),
                keys.account_budget(self.environment, account.name, limit.budget),
            )
            for limit in limits_of(account.budgets)
        ]
        domain = LimitDomain(f"a:{account.name}", self.settlements)
        return _Asked(account, tuple(refs), SubjectDemands(domain, account, self.kept, MAX_DEMANDS))
