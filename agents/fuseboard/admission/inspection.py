"""The supported view of an ``Admission`` from inside: what it would decide now, without a charge.

``fuseboard explain`` uses nothing else of the admission. Other tools that look inside should do the
same, because the other modules change with every feature.
"""

from msgspec import Struct
from msgspec.structs import replace

from fuseboard.admission.budget_inspection import UNUSED, BudgetInspection, KnownBudget
from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.decisions import Refusal
from fuseboard.admission.lanes import CallLane, RequestLane
from fuseboard.admission.request_admission import RequestAdmission
from fuseboard.batching.account_domains import AccountDomains
from fuseboard.batching.domains import ALL_CALLERS, LimitDomain
from fuseboard.batching.probe import Probe
from fuseboard.batching.redis_question import Domain, RedisAnswer
from fuseboard.batching.standing_demand import StandingDemand, refusal_reason
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract import keys
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.subject import NO_SUBJECT, Costs, Subject


class Expected(Struct, frozen=True):
    """The result of a call or a request that came now."""

    #: When Redis does not answer, it depends on the configuration alone.
    decision: Decision
    #: The limits that apply, and the cost in each.
    costs: dict[str, int]


class Inspection(Struct, frozen=True):
    """Reads only: nothing is charged, counted or remembered. ``Admission.inspect`` makes it."""

    requests: RequestAdmission
    calls: CallAdmission
    accounts: AccountDomains

    @property
    def mode(self) -> Mode:
        return self.calls.health.mode

    @property
    def mode_cause(self) -> str:
        return self.calls.health.cause

    async def request(self, tenant: str, costs: Costs, subject: Subject) -> Expected:
        """One request of a tenant, or of an address or key when ``tenant`` is empty."""
        snapshot = self.requests.configuration.snapshot
        if not tenant:
            return await self._without_tenant(snapshot, costs, subject)
        rules = snapshot.quotas_of(tenant)
        domains = self.requests.domains
        domain, demand = domains.of_tenant(snapshot.policy, tenant, rules, costs, subject)
        lane = RequestLane(snapshot, domain, demand, tenant)
        if rules.suspended:
            decision = self._refuse(lane, Refusal(Reason.SUSPENDED, "suspended"))
        else:
            unused = keys.tenant_quota(self.calls.environment, rules.root or tenant, UNUSED)
            decision = await self._expect(lane, unused)
        every = None if domains.decides_together else domains.of_all_callers(snapshot.policy, costs, subject)
        if every is None or rules.suspended:
            return Expected(decision, _charged(demand))
        beside = await self._expect_all_callers(snapshot, *every)
        limits = decision.limits + beside.limits
        first = replace(beside, tenant=tenant) if decision.allowed and not beside.allowed else decision
        return Expected(replace(first, limits=limits), _charged(demand) | _charged(every[1]))

    async def _expect_all_callers(
        self, snapshot: Snapshot, domain: LimitDomain, demand: StandingDemand
    ) -> Decision:
        unused = keys.service_limit(self.calls.environment, UNUSED)
        return await self._expect(RequestLane(snapshot, domain, demand), unused)

    async def budgets(self, *, tenant: str = "", dependency: str = "") -> list[KnownBudget]:
        """The rest of the budgets of a call or request, whatever it costs, in the order that decides."""
        calls = self.calls
        found = BudgetInspection(calls.environment, self.requests.domains, self.accounts, calls.settlements)
        return await found.ask(calls.configuration.snapshot, tenant, dependency, self._probe)

    async def call(self, dependency: str, costs: Costs, tenant: str = "") -> Expected:
        """One call to a dependency, on behalf of ``tenant`` if there is one.

        Costs other than calls also spend the quotas and budgets of the tenant and of the account, as those of
        a guarded model client do.
        """
        expected = [await self._call(dependency, costs, tenant)]
        others = tuple([cost for cost in costs if cost[0] != "calls"])
        snapshot = self.calls.configuration.snapshot
        asked = self.accounts.of_call(snapshot, dependency, others) if others else None
        if asked is not None:
            domain, demand = asked
            unused = keys.account_budget(self.calls.environment, domain.name.removeprefix("a:"), UNUSED)
            expected.insert(
                0, Expected(await self._expect(RequestLane(snapshot, *asked), unused), _charged(demand))
            )
        if tenant and others:
            expected.insert(0, await self.request(tenant, others, NO_SUBJECT))
        refused = next((one.decision for one in expected if not one.decision.allowed), None)
        limits = tuple([limit for one in expected for limit in one.decision.limits])
        decision = replace(refused or expected[-1].decision, limits=limits, dependency=dependency)
        return Expected(decision, {name: cost for one in expected for name, cost in one.costs.items()})

    async def _call(self, dependency: str, costs: Costs, tenant: str) -> Expected:
        """The decision of the dependency itself."""
        calls, snapshot = self.calls, self.calls.configuration.snapshot
        # A separate breaker, because the pod's own would remember what this question learns.
        breaker = calls.breakers.new(dependency, on_change=lambda: None, logs=False)
        demand = breaker.demand(costs, tenant, snapshot.quotas_of(tenant) if tenant else None)
        lane = CallLane(calls.decisions, snapshot, breaker, demand, calls.configuration.changes)
        statuses = demand.statuses()
        if (refusal := calls.forced_open(breaker)) is not None:
            statuses = ()
        elif (impossible := demand.impossible_limit) is not None:
            refusal = Refusal(refusal_reason(impossible, Reason.VENDOR_LIMIT), impossible.name)
        else:
            unused = keys.vendor_limit(calls.environment, dependency, UNUSED)
            answer = await self._probe(breaker, demand, unused)
            if answer is not None:
                statuses = demand.statuses(answer.left)
                if not answer.granted:
                    refusal, statuses = calls.refusal_in(lane, answer)
        if refusal is None:
            decision = calls.decisions.allow(snapshot, statuses, dependency=dependency)
        else:
            decision = calls.decisions.refuse(snapshot, refusal, statuses, dependency=dependency)
        return Expected(decision, _charged(demand))

    async def _without_tenant(self, snapshot: Snapshot, costs: Costs, subject: Subject) -> Expected:
        """Check every domain that applies. The first refusal decides; all limits are listed."""
        refused: Decision | None = None
        charged: dict[str, int] = {}
        statuses: tuple[LimitStatus, ...] = ()
        for domain, demand in self.requests.domains.of_subject(snapshot, costs, subject):
            if domain.name == ALL_CALLERS:
                decision = await self._expect_all_callers(snapshot, domain, demand)
            else:
                name = domain.name.removeprefix("i:")
                unused = keys.subject_limit(self.calls.environment, name, UNUSED)
                decision = await self._expect(RequestLane(snapshot, domain, demand), unused)
            charged |= _charged(demand)
            statuses += decision.limits
            if refused is None and not decision.allowed:
                refused = decision
        if refused is None:
            return Expected(self.requests.decisions.allow(snapshot, statuses), charged)
        return Expected(replace(refused, limits=statuses), charged)

    async def _expect(self, lane: RequestLane, unused_key: str) -> Decision:
        demand = lane.demand
        if (impossible := demand.impossible_limit) is not None:
            return self._refuse(lane, Refusal(refusal_reason(impossible, Reason.QUOTA), impossible.name))
        answer = await self._probe(lane.domain, demand, unused_key)
        if answer is None or answer.granted:
            left = () if answer is None else answer.left
            return self.requests.decisions.allow(lane.snapshot, demand.statuses(left), tenant=lane.tenant)
        return self._refuse(lane, self.requests.refusal_in(lane, answer), demand.statuses(answer.left))

    def _refuse(
        self, lane: RequestLane, refusal: Refusal, statuses: tuple[LimitStatus, ...] = ()
    ) -> Decision:
        limits = statuses or lane.demand.statuses()
        return self.requests.decisions.refuse(lane.snapshot, refusal, limits, tenant=lane.tenant)

    async def _probe(self, domain: Domain, demand: StandingDemand, unused_key: str) -> RedisAnswer | None:
        """The answer to a call like ``demand``; ``None`` when Redis does not answer."""
        probe = Probe(demand, unused_key)
        answer = await self.calls.batcher.ask(domain, probe)
        if answer is not None:
            answer.left = answer.left[: len(demand.refs)]
            # Only the limit that refuses every probe refused it.
            answer.granted = answer.granted or answer.blocked == len(probe.refs)
        return answer


def _charged(demand: StandingDemand) -> dict[str, int]:
    return {ref.limit.name: cost for ref, cost in zip(demand.refs, demand.costs, strict=True)}
