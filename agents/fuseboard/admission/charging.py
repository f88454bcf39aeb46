"""Charges for what no permit was asked for, such as a batch whose usage a vendor reports hours later."""

import asyncio
from collections.abc import Coroutine, Sequence
from time import monotonic
from typing import Any

from msgspec import Struct, field

from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.joint_admission import JointAdmission, Wanted
from fuseboard.admission.request_admission import RequestAdmission
from fuseboard.batching.account_domains import AccountDomains
from fuseboard.batching.demand import Demand
from fuseboard.batching.domains import demand_of
from fuseboard.batching.standing_demand import is_budget
from fuseboard.configuration.snapshot import TenantRules
from fuseboard.contract.words import Mode
from fuseboard.decision import Permit
from fuseboard.subject import NO_SUBJECT, Costs
from fuseboard.without_redis.local_limits import LocalLimits


class Charging(Struct, frozen=True):
    """Belongs to the event loop. Nothing here is refused, and nothing waits."""

    calls: CallAdmission
    requests: RequestAdmission
    accounts: AccountDomains
    local: LocalLimits
    _loading: set[asyncio.Task[None]] = field(default_factory=set)

    def charge(self, dependency: str, costs: Costs, tenant: str, *, batch: bool) -> None:
        """Charge these costs, which count no calls, to the limits of ``dependency``, the budgets of its
        account, and the quotas of ``tenant``.

        ``batch``: of the limits of the vendor, only budgets. Vendors limit the rate of batches apart.
        """
        configuration = self.calls.configuration
        rules = configuration.snapshot.quotas_of(tenant) if tenant else None
        if rules is None or rules.loaded:
            self._charge(dependency, costs, tenant, rules, batch=batch)
            return

        async def load() -> None:
            loaded = await configuration.load_record(tenant)
            self._charge(dependency, costs, tenant, loaded, batch=batch)

        self._later(load())

    def charge_after(self, joint: JointAdmission, wanted: Sequence[Wanted]) -> None:
        """Charge requests that were made, with their calls. Slots are not taken: the work has ended."""
        if joint.knows(wanted):
            self._charge_after(joint, wanted)
            return

        async def load() -> None:
            await joint.load(wanted)
            self._charge_after(joint, wanted)

        self._later(load())

    def _charge_after(self, joint: JointAdmission, wanted: Sequence[Wanted]) -> None:
        for one in wanted:
            for lane in joint.lanes(one):
                self._spend(lane.domain.name, lane.demand)

    def charge_again(self, permit: Permit, times: int) -> None:
        """Charge the call of this permit ``times`` more: it was repeated without a permit."""
        for charge in permit.decision.charges:
            if charge.account.owner is not self.calls.decisions:
                continue
            demand: Demand = charge.demand
            refs = [ref for ref in demand.refs if ref.limit.measure == "calls" and not ref.is_slot]
            if refs:
                calls = demand.amounts()["calls"]
                self._spend(charge.domain, demand_of(refs, (("calls", calls * times),)))

    def _later(self, what: Coroutine[Any, Any, None]) -> None:
        # The loop keeps only weak references to its tasks.
        task = asyncio.get_running_loop().create_task(what)
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    def _charge(
        self, dependency: str, costs: Costs, tenant: str, rules: TenantRules | None, *, batch: bool
    ) -> None:
        breaker = self.calls.breakers[dependency]
        refs = breaker.refs(costs, tenant, rules, charged=True)
        # A quota of the tenant names the dependency, and a limit of the vendor does not.
        kept = [ref for ref in refs if ref.limit.dependency or not batch or is_budget(ref.limit)]
        self._spend(breaker.domain, demand_of(kept, costs))
        snapshot = self.calls.configuration.snapshot
        if (asked := self.accounts.of_call(snapshot, dependency, costs)) is not None:
            domain, demand = asked
            self._spend(domain.name, demand)
        if tenant:
            lane = self.requests.lane(tenant, costs, NO_SUBJECT)
            self._spend(lane.domain.name, lane.demand)
            if (every := lane.beside) is not None:
                self._spend(every.domain.name, every.demand)

    def _spend(self, domain: str, demand: Demand) -> None:
        health, settlements = self.calls.health, self.calls.settlements
        if health.mode is Mode.LOCAL:
            self.local.charge(demand, monotonic())
            return
        now_us = health.store_time_us()
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            if not ref.is_slot:
                settlements.add(domain, ref, now_us, cost)
