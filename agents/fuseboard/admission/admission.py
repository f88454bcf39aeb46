"""Every decision, in this order: what the pod knows, one question to Redis, or the pod's own share."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from time import monotonic
from typing import Any

import msgspec

from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.call_outcomes import CallOutcomes
from fuseboard.admission.charging import Charging
from fuseboard.admission.decisions import Refusal
from fuseboard.admission.followed_limits import FollowedLimits
from fuseboard.admission.guarded_calls import OWN, GuardedCalls
from fuseboard.admission.inspection import Inspection
from fuseboard.admission.joint_admission import JointAdmission
from fuseboard.admission.lanes import CallLane, RequestLane
from fuseboard.admission.request_admission import RequestAdmission
from fuseboard.batching.account_domains import AccountDomains
from fuseboard.breaker.ended_overrides import EndedOverrides
from fuseboard.calling.cheaper_source import has_cheaper_source
from fuseboard.contract.sync import MAX_UNCHARGED, BreakerView, Uncharged
from fuseboard.contract.words import BreakerState, Mode, Outcome, OverrideMode, Reason
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.store.drill_store import SIMULATED, DrillStore
from fuseboard.subject import NO_SUBJECT, ONE_CALL, Costs, Subject, costs_of
from fuseboard.without_redis.redis_fallback import RedisFallback

#: The cost of a call unless the caller says otherwise.
ONE = 1

#: A slot or a probe permit may become free long before it expires, so a waiting caller asks this often.
RETRY_EVERY_S = 0.02


class WantedCall(msgspec.Struct, frozen=True):
    """A call that its lane alone does not describe."""

    dependency: str
    tenant: str
    costs: Costs
    spend_quota: bool
    spend_costs: bool
    tier: str | None
    until: float | None


class Admission:
    """Belongs to the event loop it was started on. ``fuseboard.composition.compose_admission`` makes it.

    ``calls.on_change`` is called when the mode or a breaker has changed.
    """

    def __init__(
        self,
        *,
        store: DrillStore,
        redis_fallback: RedisFallback,
        requests: RequestAdmission,
        calls: CallAdmission,
        outcomes: CallOutcomes,
        accounts: AccountDomains,
        guarded: GuardedCalls,
    ) -> None:
        #: Pretends in a drill that Redis is slow or unavailable.
        self.store = store
        self.health = calls.health
        self.redis_fallback = redis_fallback
        #: Decides one plain request of a tenant at once, from its fleet lease; ``None`` when it has none.
        # A closure, not a method: it is nearly the whole cost of a leased decision.
        self.spend_by_name = calls.leases.spend_by_name
        self.configuration = calls.configuration
        self.batcher = calls.batcher
        self.settlements = calls.settlements
        self.leases = calls.leases
        self.reports = outcomes.reports
        self._requests = requests
        self.calls = calls
        #: Several requests at once.
        self.joint = JointAdmission(requests)
        self.outcomes = outcomes
        self._accounts = accounts
        #: The calls to dependencies that have a protection.
        self.guarded = guarded
        self.guards = calls.guards
        self.charging = Charging(calls, requests, accounts, redis_fallback.limits)
        self._on_change = calls.on_change
        self._lanes: dict[tuple[str, str], CallLane] = {}
        self._ended_overrides = EndedOverrides(
            configuration=calls.configuration,
            store=store,
            health=calls.health,
            on_end=calls.breakers.override_ended,
        )
        self.health.on_change = self._mode_changed
        self.configuration.listen(requests.adopt)
        self.configuration.listen(calls.adopt)
        # After it: a followed limit replaces the configured one.
        self.followed = FollowedLimits(outcomes=outcomes, store=store)

    def start(self) -> None:
        """Connect in the background. Until Redis is connected, this pod decides alone."""
        self.health.start()
        self._ended_overrides.start()
        self.followed.start()

    async def stop(self) -> None:
        """Send what is not reported yet, and disconnect. Calls that still wait are decided locally."""
        self.guards.stop()
        self.followed.stop()
        self.calls.probes.stop()
        self.leases.stop()
        self.reports.flush()
        self.settlements.stop()
        self.batcher.close()
        self.redis_fallback.drain.stop()
        self.redis_fallback.budgets.stop()
        await asyncio.sleep(0)
        # Together, so that both end within the time of one.
        await asyncio.gather(self._ended_overrides.stop(), self.health.stop())

    def breaker_opened(self, message: bytes) -> None:
        """A message of the breaker channel: a breaker has opened, or people changed it without Postgres."""
        self.calls.breaker_opened(message)
        self._ended_overrides.look()

    # Requests that enter a service

    def admit_request(
        self,
        tenant: str,
        cost: int = 1,
        *,
        costs: Mapping[str, int] | None = None,
        subject: Subject = NO_SUBJECT,
        wait_s: float | None = None,
    ) -> Coroutine[Any, Any, Decision]:
        """Decide one request of a tenant, or of an address or key when ``tenant`` is empty.

        ``costs`` are estimates of its other costs, by measure; ``settle`` corrects them. The caller
        waits for a refusal that ends within ``wait_s``; ``None`` is the wait of its tier. Nothing that
        Redis does raises an error here. Invalid costs raise ``Misconfigured``.
        """
        lane: RequestLane | None = None
        # The usual request. Compared by identity: True equals 1, but is not a valid cost.
        if cost is ONE and costs is None and subject is NO_SUBJECT:
            decision = self.spend_by_name(tenant)
            if decision is not None:
                return _at_once(decision)
            lane = self._requests.plain_lane(tenant)
            # A caller that says 0 does not wait, whatever the tier says.
            if lane is not None and not (lane.waits if wait_s is None else wait_s):
                return self._requests.decide(lane)
        charged = costs_of(cost, costs)
        if wait_s == 0:
            return self._requests.admit(tenant, charged, subject)
        return self._decide_with_wait(tenant, charged, subject, wait_s, lane)

    async def _decide_with_wait(
        self, tenant: str, costs: Costs, subject: Subject, wait_s: float | None, lane: RequestLane | None
    ) -> Decision:
        begun = monotonic()
        requests = self._requests
        # Nearly all are allowed at once: the prepared lane is enough for these.
        first = requests.admit(tenant, costs, subject) if lane is None else requests.decide(lane)
        decision = await first
        if decision.allowed:
            return decision
        if wait_s is None:
            # Known only now: the question may have looked up the tenant.
            wait_s = self.configuration.snapshot.quotas_of(tenant).wait_ms / 1000 if tenant else 0.0
        until = begun + wait_s
        while await _waited(decision, until):
            decision = await self._requests.admit(tenant, costs, subject)
        return decision

    # Calls that leave a service

    def admit_call(
        self,
        dependency: str,
        tenant: str = "",
        cost: int = 1,
        costs: Mapping[str, int] | None = None,
        spend_quota: bool = False,
        spend_costs: bool = False,
        wait_s: float | None = None,
        tier: str | None = None,
        until: float | None = None,
    ) -> Coroutine[Any, Any, Permit]:
        """Get a permit for one call. Its outcome must be reported. Raises ``Refused``.

        With a ``tenant``, its quotas on the dependency apply too, and its tier's priority counts when a
        limit is scarce. ``spend_quota`` also spends the tenant's quotas on requests, first; they are
        given back when the dependency refuses. It is for work that no request started. ``spend_costs``
        spends those of them that count other costs than calls: a request has paid for itself. ``tier`` is
        of the dependency's bulkhead. ``until`` is the caller's deadline, in monotonic seconds.
        """
        lane: CallLane | None = None
        # The usual call, prepared once. Compared by identity: True equals 1, but is not a valid cost.
        if cost is ONE and costs is None and not spend_quota:
            lane = self._lanes.get((dependency, tenant))
            if lane is None or lane.changes != self.configuration.changes:
                lane = self._prepare_lane(dependency, tenant)
            if lane is not None and lane.direct and wait_s is None:
                return self.calls.admit(lane)
            # A caller that says 0 does not wait, whatever the dependency says.
            if lane is not None and not (lane.breaker.dependency.wait_ms if wait_s is None else wait_s):
                if lane.guard is None:
                    return self.calls.admit(lane)
                return self.guarded.admit(lane, lane.guard, tier, until)
        wanted = WantedCall(dependency, tenant, costs_of(cost, costs), spend_quota, spend_costs, tier, until)
        return self._admit_patiently(wanted, wait_s, lane)

    def _prepare_lane(self, dependency: str, tenant: str) -> CallLane | None:
        """The lane of one plain call; ``None`` when the tenant's record must be looked up first."""
        rules = self.configuration.snapshot.quotas_of(tenant) if tenant else None
        if rules is not None and not rules.loaded:
            return None
        if len(self._lanes) >= self._requests.domains.most_lanes:
            self._lanes.clear()
        lane = self.calls.lane(dependency, ONE_CALL, tenant, rules)
        self._lanes[dependency, tenant] = lane
        return lane

    async def _admit_patiently(
        self, wanted: WantedCall, wait_s: float | None, lane: CallLane | None
    ) -> Permit:
        """``lane`` is prepared for the first attempt, which nearly always is enough."""
        begun = monotonic()
        if wait_s is None:
            known = self.configuration.snapshot.dependency(wanted.dependency)
            wait_s = known.wait_ms / 1000 if known is not None else 0.0
        last = begun + wait_s if wanted.until is None else min(begun + wait_s, wanted.until)
        first = returned = False
        while True:
            try:
                return await self._admit_call(wanted, lane or await self._lane_of(wanted), first=first)
            except Refused as refused:
                if wait_s <= 0 or not await _waited(refused.decision, last):
                    raise
                # Skip the queue once. A second refusal goes to its end.
                first, lane = refused.had_slot and not returned, None
                returned = returned or first

    async def _lane_of(self, wanted: WantedCall) -> CallLane:
        rules = None
        if wanted.tenant:
            rules = self.configuration.snapshot.quotas_of(wanted.tenant)
            if not rules.loaded:
                known = self.configuration.snapshot.dependency(wanted.dependency)
                # The default tier knows no budget of this tenant, and a call to a model has time.
                wait_ms = known.store_wait_ms if known is not None else 0
                rules = await self.configuration.load_record(wanted.tenant, wait_ms)
        return self.calls.lane(wanted.dependency, wanted.costs, wanted.tenant, rules)

    async def _admit_call(self, wanted: WantedCall, lane: CallLane, *, first: bool) -> Permit:
        ask = self._question(wanted)
        if lane.guard is None:
            return await ask(lane)
        return await self.guarded.admit(lane, lane.guard, wanted.tier, wanted.until, first=first, ask=ask)

    def _question(self, wanted: WantedCall) -> Callable[[CallLane], Coroutine[Any, Any, Permit]]:
        """The shared question of a call."""
        ask = self._question_of_domains(wanted)
        # Only other costs than calls have budgets.
        if len(wanted.costs) > 1 and has_cheaper_source():
            return lambda lane: self._ask_unless_degraded(lane, ask)
        return ask

    def _question_of_domains(self, wanted: WantedCall) -> Callable[[CallLane], Coroutine[Any, Any, Permit]]:
        spends_quotas = wanted.tenant and (
            wanted.spend_quota or (wanted.spend_costs and len(wanted.costs) > 1)
        )
        has_budgets = len(wanted.costs) > 1 and self.configuration.snapshot.account_of(wanted.dependency)
        if not spends_quotas and not has_budgets:
            return self.calls.admit
        return lambda lane: self._ask_every_domain(lane, wanted)

    async def _ask_every_domain(self, lane: CallLane, wanted: WantedCall) -> Permit:
        """Ask the tenant, the account and the dependency, in this order. All must admit the call.

        The call may also spend the quotas of its tenant on requests. If one refuses, or the caller is
        cancelled, what the others charged is given back.
        """
        before: list[Decision] = []
        try:
            if lane.tenant and wanted.spend_quota:
                await self._spend_quotas(lane, lane.costs, before)
            elif lane.tenant and wanted.spend_costs and len(lane.costs) > 1:
                await self._spend_quotas(lane, _without_calls(lane.costs), before)
            await self._spend_budgets(lane, before)
            permit = await self.calls.admit(lane)
        except BaseException:
            for decision in before:
                self.give_back(decision)
            raise
        charges = tuple([charge for decision in before for charge in decision.charges])
        if not charges:
            return permit
        budgets = tuple(
            [limit for decision in before for limit in decision.limits if limit.at_spent or limit.warning]
        )
        own = permit.decision
        permit.made = msgspec.structs.replace(own, charges=charges + own.charges, limits=own.limits + budgets)
        if permit.tally is not None:
            # The tenant's quotas may hold slots. Only a full report frees them, so this permit has no tally.
            permit.tally, permit.local_generation = None, permit.tally.local_generation
        return permit

    async def _ask_unless_degraded(
        self, lane: CallLane, ask: Callable[[CallLane], Coroutine[Any, Any, Permit]]
    ) -> Permit:
        """Refuse a call that a spent budget only degrades: its caller has a cheaper source."""
        permit = await ask(lane)
        spent = next((limit for limit in permit.decision.limits if limit.degraded), None)
        if spent is None:
            return permit
        self.outcomes.report(permit, Outcome.NEUTRAL, 0, None)
        self.give_back(permit.decision)
        self.calls.refuse(lane, Refusal(Reason.BUDGET_SPENT, spent.name), permit.decision.limits)

    async def _spend_quotas(self, lane: CallLane, costs: Costs, before: list[Decision]) -> None:
        """Spend the quotas and budgets of the tenant."""
        decision = await self._requests.admit(lane.tenant, costs, NO_SUBJECT)
        if not decision.allowed:
            raise Refused(decision)
        before.append(decision)

    async def _spend_budgets(self, lane: CallLane, before: list[Decision]) -> None:
        """Spend the budgets of the account."""
        dependency = lane.breaker.name
        asked = self._accounts.of_call(lane.snapshot, dependency, lane.costs)
        if asked is None:
            return
        decision = await self._requests.decide(RequestLane(lane.snapshot, *asked))
        if not decision.allowed:
            if decision.reason is not None:
                self.calls.counters.call_refused(dependency, decision.reason)
            raise Refused(msgspec.structs.replace(decision, tenant=lane.tenant, dependency=dependency))
        before.append(decision)

    def report(
        self, permit: Permit, outcome: Outcome, cooldown_ms: int = 0, elapsed_s: float | None = None
    ) -> None:
        """Report how a permitted call ended. A second report of the same permit counts nothing.

        ``cooldown_ms``: for how long the vendor asked not to be called.
        """
        self.outcomes.report(permit, outcome, cooldown_ms, elapsed_s)

    # Charges

    def settle(self, decision: Decision, measure: str, actual: int) -> None:
        """The call cost ``actual`` of ``measure``: correct the estimate it was admitted with, once."""
        for charge in decision.charges:
            if charge.account.owner is not self.calls.decisions or measure not in charge.demand.measures:
                continue
            if charge.account.settle(measure, actual):
                settlements = self.redis_fallback.limits if charge.local else self.settlements
                settlements.correct(charge, measure, actual)

    def finish(self, decision: Decision) -> None:
        """The request has ended: free its slots. Its other costs stay spent."""
        for charge in decision.charges:
            self.outcomes.finish(charge)

    def give_back(self, decision: Decision) -> None:
        """The request was not served: refund what it spent."""
        for charge in decision.charges:
            if charge.account.owner is self.calls.decisions:
                self._requests.give_back(charge)

    def undo(self, permit: Permit) -> None:
        """The call was not made: its slot and its token of the local rate are free again."""
        if permit.slot is not None:
            permit.slot.undo()

    def is_closed(self, dependency: str) -> bool:
        """Whether the breaker of a dependency is closed, as far as this pod knows. From any thread."""
        breaker = self.calls.breakers.get(dependency)
        if breaker is None:
            return True
        if (override := self.calls.breakers.override(dependency)) is not None:
            return override is not OverrideMode.FORCED_OPEN
        return breaker.state is BreakerState.CLOSED and breaker.local.state is BreakerState.CLOSED

    def refused_for_s(self, dependency: str) -> float:
        """See ``CallAdmission.refused_for_s``."""
        breaker = self.calls.breakers.get(dependency)
        return 0.0 if breaker is None else self.calls.refused_for_s(breaker)

    def inspect(self) -> Inspection:
        """The supported, read-only view of the admission."""
        return Inspection(self._requests, self.calls, self._accounts)

    # Figures of the next heartbeat

    @property
    def mode(self) -> Mode:
        return Mode.DRILL if self.store.drill is not None else self.health.mode

    @property
    def mode_for_ms(self) -> int:
        return int((monotonic() - self.health.since) * 1000)

    @property
    def mode_cause(self) -> str:
        drill = self.store.drill
        if drill is None:
            return self.health.cause
        return f"drill {drill.id}: Redis is simulated as {SIMULATED[drill.kind]}"

    def breaker_views(self) -> tuple[BreakerView, ...]:
        """Every breaker as this pod sees it."""
        local = self.health.mode is Mode.LOCAL
        return tuple(
            breaker.view(self.calls.breakers.override(breaker.name), local=local)
            for breaker in self.calls.breakers.every()
        )

    def uncharged(self) -> tuple[Uncharged, ...]:
        """The measures that limits count, and no call of this pod has stated."""
        found = [
            Uncharged(dependency=breaker.name, measure=measure)
            for breaker in tuple(self.calls.breakers.values())
            for measure in breaker.measures.uncharged
        ]
        return tuple(found[:MAX_UNCHARGED])

    def _mode_changed(self) -> None:
        self.calls.mode_changed(self.health.mode, self.store)
        self.redis_fallback.mode_changed(self.health.mode)
        self._on_change()


def _without_calls(costs: Costs) -> Costs:
    return tuple([(measure, amount) for measure, amount in costs if measure != "calls"])


async def _at_once(decision: Decision) -> Decision:
    return decision


async def _waited(decision: Decision, until: float) -> bool:
    """Sleep until asking again can succeed; ``False`` when that is after ``until``, never, or not needed.

    The caller holds nothing meanwhile: no slot, and no place in a question.
    """
    wait_s = decision.retry_after_ms / 1000
    if wait_s <= 0 or decision.reason in OWN:
        return False
    if decision.reason in (Reason.CONCURRENCY, Reason.PROBE_BUSY):
        wait_s = min(wait_s, RETRY_EVERY_S)
    # A little late, and each caller at a different moment. Otherwise all who wait for one window ask at
    # once.
    wait_s *= random.uniform(1.0, 1.1)
    if monotonic() + wait_s > until:
        return False
    await asyncio.sleep(wait_s)
    return True
