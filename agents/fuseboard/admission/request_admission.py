"""Requests that enter a service: decided by the quotas of their tenant, or by the limits of an address or
key.
"""

import asyncio
import random
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.admission.lanes import RequestLane
from fuseboard.batching.batch import Batcher
from fuseboard.batching.distribute import give_back
from fuseboard.batching.domains import RequestDomains
from fuseboard.batching.fleet_leases import DemandSupply, Leases
from fuseboard.batching.redis_question import RedisAnswer
from fuseboard.batching.settlements import Settlements
from fuseboard.batching.standing_demand import StandingDemand
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.words import Mode, Reason
from fuseboard.decision import Charge, Decision, LimitStatus
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.request_tallies import UNCOUNTED, RequestTally
from fuseboard.store.health import StoreHealth
from fuseboard.subject import NO_SUBJECT, ONE_CALL, Costs, Subject
from fuseboard.without_redis.local_limits import LocalLimits

#: Members of enumerations are slow to look up in Python 3.11.
LOCAL, SHARED = Mode.LOCAL, Mode.SHARED


class RequestAdmission(Struct, frozen=True, kw_only=True):
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    local: LocalLimits
    domains: RequestDomains
    settlements: Settlements
    leases: Leases
    decisions: DecisionBuilder
    #: Tenant -> the lane of its plain requests.
    lanes: dict[str, RequestLane] = field(default_factory=dict)

    async def admit(self, tenant: str, costs: Costs, subject: Subject) -> Decision:
        """Decide a request of ``tenant``. Without a tenant, the limits of its address or key decide."""
        if tenant:
            if not self.configuration.snapshot.quotas_of(tenant).loaded:
                await self.configuration.load_record(tenant)
            lane = self.lane(tenant, costs, subject)
            if lane.beside is not None:
                return await self._decide_beside(lane, lane.beside)
            return await self.decide(lane)
        decision = await self._admit_subject(self.configuration.snapshot, costs, subject)
        self.count_without_tenant(costs, subject, decision)
        return decision

    def count_without_tenant(self, costs: Costs, subject: Subject, decision: Decision) -> None:
        """Count a request of an address or key that belongs to no tenant."""
        policy = self.configuration.snapshot.policy
        rules = self.domains.names_of_all_callers(policy, costs, subject)
        self.counters.request("-", decision.allowed, decision.reason, rules, decision.rule)

    def plain_lane(self, tenant: str) -> RequestLane | None:
        """The lane of one plain request; ``None`` when the tenant's record must be looked up first."""
        lane = self.lanes.get(tenant)
        if lane is None or lane.changes != self.configuration.changes:
            if not tenant or not self.configuration.snapshot.quotas_of(tenant).loaded:
                return None
            if len(self.lanes) >= self.domains.most_lanes:
                self.lanes.clear()
            lane = self.lanes[tenant] = self.lane(tenant, ONE_CALL, NO_SUBJECT)
        return lane if lane.beside is None else None

    def lane(self, tenant: str, costs: Costs, subject: Subject) -> RequestLane:
        snapshot = self.configuration.snapshot
        rules = snapshot.quotas_of(tenant)
        domain, demand = self.domains.of_tenant(snapshot.policy, tenant, rules, costs, subject)
        # Costs of a call within a request are no request of their own.
        if demand.tally is UNCOUNTED and any(measure == "calls" for measure, _ in costs):
            demand.tally, demand.parent_tallies = self._tallies(tenant, demand)
        return RequestLane(
            snapshot,
            domain,
            demand,
            tenant,
            known=rules.known,
            suspended=rules.suspended,
            waits=rules.wait_ms > 0,
            changes=self.configuration.changes,
            beside=self._beside(snapshot, costs, subject),
        )

    def _tallies(self, tenant: str, demand: StandingDemand) -> tuple[RequestTally, tuple[RequestTally, ...]]:
        """The tallies of the tenant, and of those that it inherits limits from."""
        parents = [self.counters.parent_tally(*owned) for owned in demand.inherited.items()]
        return self.counters.tally(tenant, demand.rules), tuple(parents)

    def _beside(self, snapshot: Snapshot, costs: Costs, subject: Subject) -> RequestLane | None:
        if self.domains.decides_together:
            return None
        every = self.domains.of_all_callers(snapshot.policy, costs, subject)
        return None if every is None else RequestLane(snapshot, *every)

    async def _decide_beside(self, lane: RequestLane, beside: RequestLane) -> Decision:
        """Ask for the limits of all callers first, then for the tenant's. Both must allow the request."""
        known = self._decide_by_what_is_known(lane)
        if known is not None and not known.allowed:
            self.count(lane, known)
            return known
        first = await self.decide(beside)
        if not first.allowed:
            decision = replace(first, tenant=lane.tenant)
            self.count(lane, decision)
            return decision
        allowed = False
        try:
            decision = await self.decide(lane)
            allowed = decision.allowed
        finally:  # also when the caller is cancelled
            if not allowed:
                for charge in first.charges:
                    self.give_back(charge)
        if not allowed:
            return decision
        both, limits = first.charges + decision.charges, decision.limits + first.limits
        return replace(decision, charges=both, limits=limits)

    async def decide(self, lane: RequestLane) -> Decision:
        """Decide one request, and count it when it belongs to a tenant.

        First by what this pod knows, then from its fleet lease, then by Redis. Without Redis, this
        pod decides alone.
        """
        demand = lane.demand
        decision: Decision | None = None
        if (
            lane.suspended
            or not demand.refs
            or demand.impossible_limit is not None
            or demand.remembered is not None
        ):
            decision = self._decide_by_what_is_known(lane)
        if decision is None:
            if not demand.repeated:
                demand.repeated = True
            elif demand.leasable:
                supply = demand.supply or self._supply(lane)
                if (lease := self.leases.spend(supply)) is not None:
                    return lease.decision  # the calls of a lease are counted together when it ends
                self.leases.note(supply)
            answer: RedisAnswer | None = None
            if self.health.mode is SHARED or self.asks_in_a_ramp():
                # Inlined: a separate coroutine would add 10 % to a batched request.
                caller = self.batcher.ask(lane.domain, demand)
                try:
                    answer = await caller
                except asyncio.CancelledError:
                    give_back(lane.domain, demand, caller)
                    raise
            decision = self._decide_locally(lane) if answer is None else self._conclude(lane, answer)
        self.count(lane, decision)
        return decision

    def _decide_by_what_is_known(self, lane: RequestLane) -> Decision | None:
        """``None`` when Redis has to be asked."""
        demand = lane.demand
        if lane.suspended:
            return self.decisions.refuse(
                lane.snapshot, Refusal(Reason.SUSPENDED, "suspended"), tenant=lane.tenant
            )
        if not demand.refs:
            return self.decisions.allow(lane.snapshot, tenant=lane.tenant)
        if (impossible := demand.impossible_limit) is not None:
            return self._refuse(lane, Refusal(lane.domain.reason_of(impossible), impossible.name))
        remembered = demand.remembered
        if remembered is not None and (left_s := lane.domain.refusals.left_s(demand)) > 0:
            return self._refuse(lane, Refusal(remembered.reason, remembered.rule, left_s))
        return None

    def count(self, lane: RequestLane, decision: Decision) -> None:
        """Count a request for its tenant, and for the tenants it inherits limits from."""
        if not lane.tenant:
            return
        demand = lane.demand
        if decision.allowed:
            demand.tally.allowed += 1
            for tally in demand.parent_tallies:
                tally.allowed += 1
        else:
            own, parents = demand.tally, demand.parent_tallies
            if own is UNCOUNTED:
                # The refusal of a call within a request is the refusal that its tenant asks about.
                own, parents = self._tallies(lane.tenant, demand)
            self.counters.request_refused(own, decision.reason, decision.rule)
            for tally in parents:
                tally.refuse_inherited(decision.rule)
        if not lane.known:
            self.counters.unknown_tenant()

    def adopt(self, _: Snapshot) -> None:
        """Rules have changed: give back what was leased under the old ones."""
        self.leases.drop()

    def _conclude(self, lane: RequestLane, answer: RedisAnswer) -> Decision:
        """The decision that an answer from Redis means for all callers that share it."""
        if answer.decision is None:
            answer.decision = self._decide_by_answer(lane, answer)
            return answer.decision
        return answer.decision.for_another_call()

    def _decide_by_answer(self, lane: RequestLane, answer: RedisAnswer) -> Decision:
        demand = lane.demand
        limits = demand.statuses(answer.left)
        if answer.granted:
            charge = self.decisions.charge(lane.domain.name, demand, answer)
            return self.decisions.allow(lane.snapshot, limits, tenant=lane.tenant, charges=(charge,))
        return self.decisions.refuse(lane.snapshot, self.refusal_in(lane, answer), limits, tenant=lane.tenant)

    def refusal_in(self, lane: RequestLane, answer: RedisAnswer) -> Refusal:
        """Why Redis refused a request."""
        limit = lane.demand.refs[answer.blocked - 1].limit
        return Refusal(lane.domain.reason_of(limit), limit.name, answer.wait_s)

    def asks_in_a_ramp(self) -> bool:
        """Whether Redis decides this request. Never in local mode; during a ramp, a growing part of the
        requests.
        """
        part = self.health.rounded_shared_part
        return part > 0 and (part >= 1.0 or random.random() < part)

    def _supply(self, lane: RequestLane) -> DemandSupply:
        demand, tenant = lane.demand, lane.tenant

        def decision_of(answer: RedisAnswer) -> Decision:
            charge = self.decisions.charge(lane.domain.name, demand, answer)
            limits = demand.statuses(answer.left)
            snapshot = self.configuration.snapshot
            return self.decisions.allow(snapshot, limits, tenant=tenant, charges=(charge,), leased=True)

        # Requests without a tenant are counted when they are decided.
        tallies = (demand.tally, *demand.parent_tallies) if tenant else ()

        def count(calls: int, hot: bool) -> None:
            for tally in tallies:
                tally.allow_leased(calls, hot=hot)
            if not lane.known:
                self.counters.unknown_tenant(calls)

        supply = demand.supply = DemandSupply(lane.domain, demand, decision_of, count)
        if tenant and demand.plain and lane.beside is None:
            supply.name = tenant
        return supply

    async def _admit_subject(self, snapshot: Snapshot, costs: Costs, subject: Subject) -> Decision:
        """Check every domain that applies, in turn. Unless all of them allow, what was spent is given
        back.
        """
        spent: list[Charge] = []
        limits: tuple[LimitStatus, ...] = ()
        allowed = False
        try:
            for domain, demand in self.domains.of_subject(snapshot, costs, subject):
                decision = await self.decide(RequestLane(snapshot, domain, demand))
                limits += decision.limits
                if not decision.allowed:
                    return decision
                spent += decision.charges
            allowed = True
        finally:  # also when the caller is cancelled between two domains
            if not allowed:
                for charge in spent:
                    self.give_back(charge)
        return self.decisions.allow(snapshot, limits, charges=tuple(spent))

    def give_back(self, charge: Charge) -> None:
        """The request was not served: refund what it spent."""
        demand = charge.demand
        spent = charge.account.give_back(demand.amounts())
        if spent is None:
            return
        if not charge.local:
            self.settlements.refund(charge, spent)
            return
        self.local.refund(charge, spent)
        if charge.account.end():
            self.local.free(demand)

    def _decide_locally(self, lane: RequestLane) -> Decision:
        demand = lane.demand
        self.counters.decided_locally()
        now = monotonic()
        blocked = self.local.take(demand, self.health.local_part, now)
        if blocked is None:
            charge, limits = self.decisions.local_charge(demand, now), demand.statuses()
            return self.decisions.allow(lane.snapshot, limits, LOCAL, tenant=lane.tenant, charges=(charge,))
        usual = lane.domain.reason_of(blocked.limit)
        reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else usual
        return self._refuse(lane, Refusal(reason, blocked.limit.name, blocked.wait_s), LOCAL)

    def _refuse(self, lane: RequestLane, refusal: Refusal, mode: Mode | None = None) -> Decision:
        limits = lane.demand.statuses(spent_limit=refusal.rule)
        return self.decisions.refuse(lane.snapshot, refusal, limits, mode, tenant=lane.tenant)
