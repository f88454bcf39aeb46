"""Requests that enter a service: decided by the quotas of their tenant, or of an address or key."""

import random
from dataclasses import dataclass, field
from time import monotonic

from fuseboard.admission.answers import Answers, Refusal, reason_of, statuses
from fuseboard.admission.batch import Batcher, ask_for
from fuseboard.admission.demand import Demand
from fuseboard.admission.domains import LimitDomain, RequestDomains
from fuseboard.admission.leases import Leases, Supply
from fuseboard.admission.local_limits import LocalLimits
from fuseboard.admission.question import Answer
from fuseboard.admission.settlements import Settlements
from fuseboard.configuration.holder import Configuration
from fuseboard.configuration.snapshot import Snapshot, TenantRules
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Charge, Decision, LimitStatus
from fuseboard.reporting.counters import Counters
from fuseboard.store.health import StoreHealth
from fuseboard.subject import Costs, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdmission:
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    local: LocalLimits
    domains: RequestDomains
    settlements: Settlements
    leases: Leases
    answers: Answers
    #: By tenant, what supplies its plain requests.
    stocked: dict[str, Supply] = field(default_factory=dict)

    async def admit(self, tenant: str, costs: Costs, subject: Subject) -> Decision:
        """Decide a request of ``tenant``; without one, by the limits on its address or key."""
        if tenant:
            snapshot, rules = await self.rules_of(tenant)
            if rules.suspended:
                decision = self.answers.refuse(
                    snapshot, Refusal(Reason.SUSPENDED, "suspended"), tenant=tenant
                )
            elif not rules.quotas:
                decision = self.answers.allow(snapshot, tenant=tenant)
            else:
                domain, demand = self.domains.of_tenant(tenant, rules, costs, subject)
                decision = await self.spend(snapshot, domain, demand, tenant)
        else:
            snapshot = self.configuration.snapshot
            decision = await self._of_nobody(snapshot, costs, subject)
        if not decision.leased:  # those are counted together when their lease ends
            self.counters.request(tenant or "-", decision.allowed, decision.reason)
        return decision

    def leased(self, tenant: str) -> Decision | None:
        """The decision on one plain request of ``tenant`` that is paid for already, if there is one."""
        # As ``Leases.spend``, in one function: this is the whole cost of a leased decision.
        supply = self.stocked.get(tenant)
        if supply is None:
            return None
        lease = supply.lease
        if lease is None or lease.tokens <= 0 or monotonic() >= lease.until:
            return None
        lease.tokens -= 1
        if lease.tokens == lease.low:
            self.leases.renew(supply)
        return lease.decision

    def adopt(self, _: Snapshot) -> None:
        """Rules changed: what was leased under the old ones goes back."""
        self.stocked.clear()
        self.leases.drop()

    async def rules_of(self, tenant: str) -> tuple[Snapshot, TenantRules]:
        snapshot = self.configuration.snapshot
        rules = snapshot.quotas_of(tenant)
        if not rules.met:
            await self.configuration.meet(tenant)
            snapshot = self.configuration.snapshot
            rules = snapshot.quotas_of(tenant)
        return snapshot, rules

    async def spend(self, snapshot: Snapshot, domain: LimitDomain, demand: Demand, tenant: str) -> Decision:
        """Spend what ``demand`` asks for, in Redis or of this server's share."""
        if not demand.refs:
            return self.answers.allow(snapshot, tenant=tenant)
        if (never := demand.never) is not None:
            refusal = Refusal(reason_of(never, Reason.QUOTA), never.name)
            return self._refuse(snapshot, demand, refusal, tenant)
        if (denial := demand.denial) is not None:
            if (left_s := denial.left_s(monotonic())) > 0:
                return self._refuse(snapshot, demand, Refusal(denial.reason, denial.rule, left_s), tenant)
            demand.denial = None
        if demand.supply is None and demand.leasable:
            demand.supply = self._supply(domain, demand, tenant)
        if demand.supply is not None:
            if (lease := self.leases.spend(demand.supply)) is not None:
                return lease.decision
            self.leases.note(demand.supply)
        answer = await self.ask(domain, demand)
        if answer is None:
            return self._decide_locally(snapshot, demand, tenant)
        if answer.decision is None:
            answer.decision = self._decide(snapshot, domain, demand, tenant, answer)
        return answer.decision

    def _decide(
        self, snapshot: Snapshot, domain: LimitDomain, demand: Demand, tenant: str, answer: Answer
    ) -> Decision:
        """What Redis's answer means to all who share it."""
        limits = statuses(demand, answer.left)
        if answer.granted:
            charge = Charge(domain.name, demand, answer.at_us, answer.token)
            return self._allow(snapshot, limits, tenant, charge)
        blocking = demand.refs[answer.blocked - 1].limit
        refusal = Refusal(reason_of(blocking, Reason.QUOTA), blocking.name, answer.wait_us / 1_000_000)
        # A slot may be free any moment; and in a ramp, Redis does not speak for the local share.
        if self.health.shared_tenths >= 1.0 and refusal.reason is not Reason.CONCURRENCY:
            demand.deny(refusal.reason, refusal.rule, monotonic() + refusal.wait_s)
        return self.answers.refuse(snapshot, refusal, limits, tenant=tenant)

    async def ask(self, domain: LimitDomain, demand: Demand) -> Answer | None:
        """Redis's answer; ``None`` when it cannot be asked or does not answer, or the ramp says local."""
        if self.health.mode is Mode.LOCAL:
            return None
        part = self.health.shared_tenths
        if part < 1.0 and random.random() >= part:
            return None
        return await ask_for(self.batcher, domain, demand)

    def _supply(self, domain: LimitDomain, demand: Demand, tenant: str) -> Supply:
        def sign(answer: Answer) -> Decision:
            charge = Charge(domain.name, demand, answer.at_us, "")
            limits = statuses(demand, answer.left)
            snapshot = self.configuration.snapshot
            return self.answers.allow(snapshot, limits, tenant=tenant, charges=(charge,), leased=True)

        def count(calls: int) -> None:
            self.counters.requests_allowed(tenant or "-", calls)

        supply = Supply(domain, demand, sign, count)
        if tenant and demand.plain:
            self.stocked[tenant] = supply
        return supply

    async def _of_nobody(self, snapshot: Snapshot, costs: Costs, subject: Subject) -> Decision:
        """Every domain that binds, in turn; what was spent is given back unless all of them allow."""
        spent: list[Charge] = []
        limits: tuple[LimitStatus, ...] = ()
        allowed = False
        try:
            for domain, demand in self.domains.of_subject(snapshot, costs, subject):
                decision = await self.spend(snapshot, domain, demand, "")
                limits += decision.limits
                if not decision.allowed:
                    return decision
                spent += decision.charges
            allowed = True
        finally:  # also when the caller was cancelled between two of them
            if not allowed:
                for charge in spent:
                    self.give_back(charge)
        return self.answers.allow(snapshot, limits, charges=tuple(spent))

    def give_back(self, charge: Charge) -> None:
        """The request was not served after all."""
        if charge.local:
            self.local.free(charge.demand)
        else:
            self.settlements.give_back(charge.domain, charge.demand, charge.at_us, charge.token)

    def _decide_locally(self, snapshot: Snapshot, demand: Demand, tenant: str) -> Decision:
        self.counters.decided_locally()
        blocked = self.local.take(demand, self.health.local_part)
        if blocked is None:
            charge = Charge("", demand, 0, "", local=True)
            return self._allow(snapshot, statuses(demand), tenant, charge)
        reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else reason_of(blocked.limit, Reason.QUOTA)
        return self._refuse(snapshot, demand, Refusal(reason, blocked.limit.name, blocked.wait_s), tenant)

    def _allow(
        self, snapshot: Snapshot, limits: tuple[LimitStatus, ...], tenant: str, charge: Charge
    ) -> Decision:
        return self.answers.allow(snapshot, limits, tenant=tenant, charges=(charge,))

    def _refuse(self, snapshot: Snapshot, demand: Demand, refusal: Refusal, tenant: str) -> Decision:
        return self.answers.refuse(snapshot, refusal, statuses(demand, spent=refusal.rule), tenant=tenant)
