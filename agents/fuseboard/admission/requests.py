"""Requests that enter a service: decided by the quotas of their tenant."""

import random
from dataclasses import dataclass
from time import monotonic

from fuseboard.admission.answers import Answers, Refusal, most_at_once
from fuseboard.admission.batch import Batcher
from fuseboard.admission.gate import Denial
from fuseboard.admission.limits import LocalLimits
from fuseboard.admission.question import Answer
from fuseboard.admission.tenant import TenantDomain, TenantDomains
from fuseboard.configuration.holder import Configuration
from fuseboard.configuration.snapshot import Snapshot, TenantRules
from fuseboard.contract.words import Reason
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from fuseboard.reporting.counters import Counters
from fuseboard.store.health import StoreHealth


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestAdmission:
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    local: LocalLimits
    domains: TenantDomains
    answers: Answers

    async def admit(self, tenant: str, cost: int) -> Decision:
        if type(cost) is not int or cost < 1:
            raise Misconfigured(f"cost must be a whole number of at least 1, not {cost!r}")
        snapshot = self.configuration.snapshot
        rules = snapshot.quotas_of(tenant)
        if not rules.met:
            await self.configuration.meet(tenant)
            snapshot = self.configuration.snapshot
            rules = snapshot.quotas_of(tenant)
        decision = self._known_here(snapshot, tenant, rules, cost)
        if decision is None:
            decision = await self._ask(snapshot, tenant, rules, cost)
        self.counters.request(tenant, decision.allowed, decision.reason)
        return decision

    def _known_here(self, snapshot: Snapshot, tenant: str, rules: TenantRules, cost: int) -> Decision | None:
        """What needs no store: suspension, a limit of zero, a cost that never fits, no limit at all."""
        if rules.suspended:
            return self.answers.refuse(snapshot, Refusal(Reason.SUSPENDED, "suspended"), tenant=tenant)
        for limit in rules.quotas:
            if cost > most_at_once(limit) and not limit.shadow:
                return self.answers.refuse(
                    snapshot, Refusal(Reason.QUOTA, limit.name), rules.quotas, tenant=tenant
                )
        return None if rules.quotas else self.answers.allow(snapshot, tenant=tenant)

    async def _ask(self, snapshot: Snapshot, tenant: str, rules: TenantRules, cost: int) -> Decision:
        part = self.health.shared_tenths
        domain = self.domains.get(tenant, rules, part)
        denial = domain.denied(cost)
        if denial is not None:
            refusal = Refusal(denial.reason, denial.rule, denial.until - monotonic())
            return self.answers.refuse(snapshot, refusal, domain.limits, tenant=tenant)
        answer: Answer | None = None
        if self.health.usable and (part >= 1.0 or random.random() < part):
            answer = await self.batcher.ask(domain, cost)
        if answer is None:
            return self._decide_locally(snapshot, tenant, domain, cost)
        if answer.granted:
            return self.answers.allow(snapshot, domain.limits, answer.left, tenant=tenant)
        refusal = Refusal(Reason.QUOTA, domain.limits[answer.blocked - 1].name, answer.wait_us / 1_000_000)
        if part >= 1.0:  # while ramping, a refusal by Redis says nothing about the local share
            domain.denial = Denial(refusal.reason, refusal.rule, monotonic() + refusal.wait_s, cost)
        return self.answers.refuse(snapshot, refusal, domain.limits, answer.left, tenant=tenant)

    def _decide_locally(self, snapshot: Snapshot, tenant: str, domain: TenantDomain, cost: int) -> Decision:
        self.counters.decided_locally()
        blocked = self.local.take(f"t:{tenant}", domain.limits, cost, self.health.local_part)
        if blocked is None:
            return self.answers.allow(snapshot, domain.limits, tenant=tenant)
        reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else Reason.QUOTA
        refusal = Refusal(reason, blocked.limit.name, blocked.wait_s)
        return self.answers.refuse(snapshot, refusal, domain.limits, tenant=tenant)
