"""Submits a job: the quotas of its tenant are spent first, and given back if the backlog refuses."""

import asyncio
from typing import Any, NoReturn

from msgspec.structs import replace

from fuseboard.admission.admission import Admission
from fuseboard.admission.decisions import Refusal
from fuseboard.admission.inspection import Inspection
from fuseboard.backlog.jobs import Submitted
from fuseboard.backlog.options import NewJob
from fuseboard.backlog.scripts import ACCEPTED, FINISHED, KNOWN, BacklogScripts, NotRun
from fuseboard.batching.demand import LimitRef
from fuseboard.batching.domains import LimitDomain, binds, demand_of
from fuseboard.batching.standing_demand import StandingDemand, refusal_reason
from fuseboard.configuration.snapshot import TenantRules
from fuseboard.contract import keys
from fuseboard.contract.words import Reason
from fuseboard.decision import Charge, Decision
from fuseboard.errors import Refused, StoreUnavailable
from fuseboard.subject import NO_SUBJECT, Costs, costs_of

#: When to try a full backlog again.
FULL_RETRY_S = 1.0


class Submitter:
    """Belongs to the event loop of the agent."""

    def __init__(self, admission: Admission, inside: Inspection, scripts: BacklogScripts) -> None:
        self._admission = admission
        self._requests, self._calls = inside.requests, inside.calls
        self._scripts = scripts
        # The tenant's quotas on the dependency, apart from its breaker: an open one must not refuse a submit.
        self._quotas = LimitDomain(f"d:{scripts.dependency}", self._calls.settlements)

    async def submit(self, job: NewJob) -> Submitted:
        """Raises ``Refused`` (a quota, ``backlog_full``, ``store_unavailable``) and ``Misconfigured``."""
        charged = costs_of(job.cost, job.costs)
        if not self._calls.health.usable:
            self._refuse(Reason.STORE_UNAVAILABLE)
        impossible = self._scripts.impossible_limit(charged)
        if impossible is not None:
            self._refuse(refusal_reason(impossible, Reason.VENDOR_LIMIT), rule=impossible.name)
        spent = await self._spend(job.tenant, charged) if job.tenant else None
        try:
            status, _, jobs, _ = await self._scripts.submit(self._arguments(job, charged), job.body)
        except NotRun:
            self._give_back(spent)
            self._refuse(Reason.STORE_UNAVAILABLE)
        except StoreUnavailable:
            # It may have been accepted. Submitting again with this id is safe.
            self._finish(spent)
            self._refuse(Reason.STORE_UNAVAILABLE)
        except asyncio.CancelledError:
            # The charge stays. Otherwise callers with a short timeout would queue jobs without paying.
            self._finish(spent)
            raise
        except BaseException:
            self._give_back(spent)
            raise
        if status == ACCEPTED:
            self._finish(spent)
            return Submitted(job.job_id, True, jobs)
        self._give_back(spent)
        if status in (KNOWN, FINISHED):
            return Submitted(job.job_id, False, jobs)
        self._refuse(Reason.BACKLOG_FULL, wait_s=FULL_RETRY_S)

    def _arguments(self, job: NewJob, charged: Costs) -> list[Any]:
        options = self._scripts.options
        return [
            job.job_id,
            keys.subject_digest(job.tenant) if job.tenant else "",
            job.priority,
            job.delay_us,
            job.deadline_us,
            job.tries,
            int(options.age_s * 1e6),
            options.age_calls,
            int(options.fair),
            job.cost,
            [part for pair in charged for part in pair],
            options.max_jobs,
            options.max_bytes,
            options.max_memory_percent,
            self._scripts.channel,
            self._scripts.dependency,
        ]

    async def _spend(self, tenant: str, costs: Costs) -> Decision:
        """Spend the tenant's quotas on requests, and then those on the dependency."""
        decision = await self._requests.admit(tenant, costs, NO_SUBJECT)
        if not decision.allowed:
            raise Refused(decision)
        try:
            charge = await self._spend_on_dependency(tenant, costs)
        except BaseException:
            self._give_back(decision)
            raise
        return decision if charge is None else replace(decision, charges=(*decision.charges, charge))

    async def _spend_on_dependency(self, tenant: str, costs: Costs) -> Charge | None:
        demand = self._demand(tenant, self._calls.configuration.snapshot.quotas_of(tenant), costs)
        if not demand.refs:
            return None
        if demand.impossible_limit is not None:
            self._refuse(
                refusal_reason(demand.impossible_limit, Reason.QUOTA),
                rule=demand.impossible_limit.name,
                tenant=tenant,
            )
        answer = await self._calls.batcher.ask(self._quotas, demand)
        if answer is None:
            self._refuse(Reason.STORE_UNAVAILABLE, tenant=tenant)
        if not answer.granted:
            limit = demand.refs[answer.blocked - 1].limit
            reason = refusal_reason(limit, Reason.QUOTA)
            self._refuse(reason, rule=limit.name, tenant=tenant, wait_s=answer.wait_s)
        return self._calls.decisions.charge(self._quotas.name, demand, answer)

    def _demand(self, tenant: str, rules: TenantRules, costs: Costs) -> StandingDemand:
        name = self._scripts.dependency
        refs = [
            LimitRef(
                quota.limit,
                keys.dependency_quota(self._calls.environment, name, quota.tenant, quota.name),
            )
            for quota in rules.of(tenant)
            if binds(quota.limit, costs, NO_SUBJECT, dependency=name)
        ]
        return demand_of(refs, costs, rules.priority)

    def _finish(self, spent: Decision | None) -> None:
        """Keep the charges, and give back the slots."""
        if spent is not None:
            self._admission.finish(spent)

    def _give_back(self, spent: Decision | None) -> None:
        if spent is not None:
            self._admission.give_back(spent)

    def _refuse(self, reason: Reason, *, rule: str = "", tenant: str = "", wait_s: float = 0.0) -> NoReturn:
        name = self._scripts.dependency
        self._calls.counters.call_refused(name, reason)
        decisions, snapshot = self._calls.decisions, self._calls.configuration.snapshot
        refusal = Refusal(reason, rule or name, wait_s)
        raise Refused(decisions.refuse(snapshot, refusal, tenant=tenant, dependency=name))
