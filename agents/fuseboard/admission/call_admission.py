"""Calls that leave a service: decided by the override, the breaker and the limits of their dependency."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

from msgspec import Struct

from fuseboard.admission.account_stops import PREFIX, AccountStops
from fuseboard.admission.call_guard import CallGuards
from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.admission.lanes import CallLane
from fuseboard.admission.pod_breakers import PodBreakers
from fuseboard.batching.batch import Batcher
from fuseboard.batching.distribute import give_back
from fuseboard.batching.fleet_leases import DemandSupply, Leases
from fuseboard.batching.redis_question import (
    COOLING_DOWN,
    FORCED_OPEN,
    OPEN,
    PROBES,
    SLOW_START,
    Caller,
    RedisAnswer,
)
from fuseboard.batching.settlements import Settlements
from fuseboard.breaker.fleet_breaker import FleetBreaker, UncountedSuccesses
from fuseboard.breaker.probes import Probes
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot, TenantRules
from fuseboard.contract.words import BreakerState, Mode, OverrideMode, Reason
from fuseboard.decision import LimitStatus, Permit
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import Store
from fuseboard.subject import Costs
from fuseboard.without_redis.local_limits import LocalLimits

#: Verdicts of the breaker as a caller reads them. For every other one, all probe permits are taken.
_BREAKER_REASONS = {
    OPEN: Reason.BREAKER_OPEN,
    SLOW_START: Reason.BREAKER_OPEN,
    FORCED_OPEN: Reason.FORCED_OPEN,
    COOLING_DOWN: Reason.COOLING_DOWN,
}

# Members of enumerations are slow to look up in Python 3.11.
CLOSED, LOCAL = BreakerState.CLOSED, Mode.LOCAL


class CallAdmission(Struct, frozen=True, kw_only=True):
    environment: str
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    local: LocalLimits
    settlements: Settlements
    leases: Leases
    decisions: DecisionBuilder
    guards: CallGuards
    probes: Probes
    on_change: Callable[[], None]
    stops: AccountStops
    breakers: PodBreakers

    def lane(self, dependency: str, costs: Costs, tenant: str, rules: TenantRules | None) -> CallLane:
        """``rules`` are those of ``tenant`` when its quotas on the dependency bind too."""
        breaker = self.breakers[dependency]
        return CallLane(
            self.decisions,
            self.configuration.snapshot,
            breaker,
            breaker.demand(costs, tenant, rules),
            self.configuration.changes,
            guard=self.guards.find(dependency),
            costs=costs,
            tenant=tenant,
        )

    def renew(self, lane: CallLane) -> CallLane:
        """Return this lane, or one by the present rules if they have changed since."""
        if lane.changes == self.configuration.changes:
            return lane
        rules = self.configuration.snapshot.quotas_of(lane.tenant) if lane.tenant else None
        return self.lane(lane.breaker.name, lane.costs, lane.tenant, rules)

    async def admit(self, lane: CallLane, *, leased: bool = True) -> Permit:
        """Decide one call; raises ``Refused``.

        First by what this pod knows, then from its fleet lease, then by Redis. Without Redis, this
        pod decides alone. ``leased``: its fleet lease was not asked yet.
        """
        breaker, demand = lane.breaker, lane.demand
        if (
            breaker.remembered is not None
            or demand.remembered is not None
            or breaker.overridden
            or breaker.local.state is not CLOSED
            or demand.impossible_limit is not None
        ):
            self._refuse_by_what_is_known(lane)
        if self.stops.stopped and (stop := self.stops.stopped.get(breaker.name)) is not None:
            wait_s = await self.stops.wait_s(breaker.name, stop)
            if wait_s > 0:
                self.refuse(lane, Refusal(Reason.COOLING_DOWN, stop.account, wait_s))
        # Identifies the generations of both breakers: another object replaces it when either changes.
        tally = breaker.tally
        if leased and demand.leasable and (permit := self.from_lease(lane)) is not None:
            return permit if breaker.local.state is CLOSED else self.probes.begin(breaker, permit)
        # When Redis is back, its breakers apply at once. Only limits ramp.
        if self.health.mode is LOCAL:
            return self._decide_locally(lane)
        caller = self.batcher.ask(breaker, demand)
        try:
            answer = await caller
        except asyncio.CancelledError:
            give_back(breaker, demand, caller)
            breaker.release_local_probe(tally)
            raise
        if answer is None:
            if breaker.tally is not tally:
                self._refuse_by_what_is_known(lane)
            return self._decide_locally(lane)
        if not answer.granted:
            breaker.release_local_probe(tally)
            self._refuse_by_answer(lane, answer)
        if breaker.tally is not tally or breaker.remembered is not None:
            self._check_again(lane, caller, answer, tally)
        if answer.maker is None:
            answer.maker, answer.mode = lane, self.health.mode
        if answer.token:
            return self.probes.begin(breaker, _permit_with_token(lane, answer))
        generation, tally = answer.generation, breaker.tally
        permit = Permit(
            made=answer,
            dependency=breaker.name,
            generation=generation,
            tally=tally if tally.generation == generation else None,
        )
        return permit if breaker.local.state is CLOSED else self.probes.begin(breaker, permit)

    def _refuse_by_what_is_known(self, lane: CallLane) -> None:
        """Raise ``Refused`` if what this pod knows already refuses the call."""
        breaker = lane.breaker
        self.refuse_by_memory(lane)
        if breaker.remembered is not None and breaker.remembered.until <= monotonic():
            breaker.remembered = None
        self._refuse_by_local_breaker(lane)

    def refuse_by_memory(self, lane: CallLane) -> None:
        """Raise ``Refused`` if an override, or what Redis said last, refuses the call. Changes nothing."""
        breaker, demand = lane.breaker, lane.demand
        if (forced := self.forced_open(breaker)) is not None:
            self.refuse(lane, forced)
        if (wait_s := self.stops.left_s(breaker.name)) > 0:
            self.refuse(lane, Refusal(Reason.COOLING_DOWN, self.stops.stopped[breaker.name].account, wait_s))
        if (impossible := demand.impossible_limit) is not None:
            refusal = Refusal(breaker.reason_of(impossible), impossible.name)
            self.refuse(lane, refusal, demand.statuses(spent_limit=impossible.name))
        self._refuse_by_last_answer(lane)
        if (remembered := demand.remembered) is not None and (left_s := breaker.refusals.left_s(demand)) > 0:
            spent = demand.statuses(spent_limit=remembered.rule)
            self.refuse(lane, Refusal(remembered.reason, remembered.rule, left_s), spent)

    def _refuse_by_last_answer(self, lane: CallLane) -> None:
        """Raise ``Refused`` if the last refusal of the breaker is still believed."""
        remembered = lane.breaker.remembered
        if remembered is not None and (left_s := remembered.left_s(monotonic())) > 0:
            self.refuse(lane, Refusal(remembered.reason, remembered.rule, left_s), lane.demand.statuses())

    def _refuse_by_local_breaker(self, lane: CallLane) -> None:
        """Raise ``Refused`` unless this pod's own breaker lets the call pass, maybe as its probe."""
        breaker = lane.breaker
        if breaker.local.state is not CLOSED and self.breakers.override(breaker.name) is None:
            wait_s = breaker.wait_locally()
            if wait_s > 0:
                # A probe may end at any moment, so a waiting caller asks again soon.
                probing = breaker.local.state is BreakerState.HALF_OPEN
                reason = Reason.PROBE_BUSY if probing else Reason.BREAKER_OPEN
                self.refuse(lane, Refusal(reason, breaker.name, wait_s), mode=LOCAL)

    def _check_again(
        self, lane: CallLane, caller: Caller, answer: RedisAnswer, tally: UncountedSuccesses
    ) -> None:
        """A breaker has changed while ``caller`` waited for its grant, and may be open now.

        Or the pod has learned of a refusal meanwhile, or Redis has lost an open breaker.
        """
        try:
            if lane.breaker.tally is tally:
                self._refuse_by_last_answer(lane)
                return
            # An override starts no generation of the fleet's breaker.
            if (forced := self.forced_open(lane.breaker)) is not None:
                self.refuse(lane, forced)
            if answer.generation < lane.breaker.generation:
                self._refuse_by_what_is_known(lane)  # newer than the grant
            else:
                self._refuse_by_local_breaker(lane)
        except Refused:
            lane.breaker.release_local_probe(tally)
            give_back(lane.breaker, lane.demand, caller)
            raise

    def forced_open(self, breaker: FleetBreaker) -> Refusal | None:
        """The refusal by an override that applies and forces the breaker open."""
        override = breaker.dependency.override
        if override is None or self.breakers.override(breaker.name) is not OverrideMode.FORCED_OPEN:
            return None
        left_us = override.expires_at_us - self.configuration.clock.now_us()
        return Refusal(Reason.FORCED_OPEN, breaker.name, left_us / 1_000_000)

    def refused_for_s(self, breaker: FleetBreaker) -> float:
        """The time for which this pod refuses every call, by what it knows; 0 if it does not."""
        if (forced := self.forced_open(breaker)) is not None:
            return max(0.0, forced.wait_s)
        if self.breakers.override(breaker.name) is not None:
            return 0.0
        now, known = monotonic(), [self.stops.left_s(breaker.name)]
        if (one := breaker.deciding(local=self.health.mode is LOCAL)).state is BreakerState.OPEN:
            known.append(one.until - now)
        if breaker.remembered is not None:
            known.append(breaker.remembered.left_s(now))
        return max(known)

    def from_lease(self, lane: CallLane) -> Permit | None:
        """A permit from the fleet lease of a leasable demand, while the fleet's breaker is closed."""
        breaker, demand = lane.breaker, lane.demand
        if breaker.state is not CLOSED or breaker.overridden or breaker.name in self.stops.stopped:
            return None
        if demand.supply is None:
            if not demand.repeated:
                demand.repeated = True
                return None
            demand.supply = DemandSupply(breaker, demand, lane.lease_decision, lambda *_: None)
        lease = self.leases.spend(demand.supply)
        if lease is None:
            self.leases.note(demand.supply)
            return None
        generation, tally = lease.answer.generation, breaker.tally
        return Permit(
            made=lease.decision,
            dependency=breaker.name,
            generation=generation,
            # A leased call holds no slots, so a success is one number.
            tally=tally if tally.generation == generation else None,
            local_generation=breaker.local.generation,
        )

    def refusal_in(self, lane: CallLane, answer: RedisAnswer) -> tuple[Refusal, tuple[LimitStatus, ...]]:
        """Why Redis refused a call, and the limits to show with it."""
        breaker, demand, wait_s = lane.breaker, lane.demand, answer.wait_s
        if answer.blocked <= 0:
            reason = _BREAKER_REASONS.get(answer.verdict, Reason.PROBE_BUSY)
            return Refusal(reason, breaker.name, wait_s), ()
        limit = demand.refs[answer.blocked - 1].limit
        return Refusal(breaker.reason_of(limit), limit.name, wait_s), demand.statuses(answer.left)

    def _refuse_by_answer(self, lane: CallLane, answer: RedisAnswer) -> NoReturn:
        refusal, statuses = self.refusal_in(lane, answer)
        self.refuse(lane, refusal, statuses)

    def _decide_locally(self, lane: CallLane) -> Permit:
        breaker, demand, now = lane.breaker, lane.demand, monotonic()
        if (remembered := breaker.remembered) is not None and (left_s := remembered.until - now) > 0:
            # Redis was asked again and does not answer, so its last refusal applies.
            breaker.release_local_probe(breaker.tally)
            refusal = Refusal(remembered.reason, remembered.rule, left_s)
            self.refuse(lane, refusal, demand.statuses(), LOCAL)
        self.counters.decided_locally()
        blocked = self.local.take(demand, self.health.local_part, now)
        if blocked is not None:
            breaker.release_local_probe(breaker.tally)
            usual = breaker.reason_of(blocked.limit)
            reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else usual
            refusal = Refusal(reason, blocked.limit.name, blocked.wait_s)
            self.refuse(lane, refusal, demand.statuses(), LOCAL)
        charge = self.decisions.local_charge(demand, now)
        decision = self.decisions.allow(
            lane.snapshot, demand.statuses(), LOCAL, dependency=breaker.name, charges=(charge,)
        )
        permit = Permit(
            made=decision, dependency=breaker.name, generation=0, local_generation=breaker.local.generation
        )
        return self.probes.begin(breaker, permit)

    def refuse(
        self,
        lane: CallLane,
        refusal: Refusal,
        limits: tuple[LimitStatus, ...] = (),
        mode: Mode | None = None,
    ) -> NoReturn:
        name = lane.breaker.name
        self.counters.call_refused(name, refusal.reason)
        raise Refused(self.decisions.refuse(lane.snapshot, refusal, limits, mode, dependency=name))

    # A newer configuration, messages, and the mode

    def adopt(self, snapshot: Snapshot) -> None:
        """Decide by a newer configuration from now on."""
        self.guards.adopt(snapshot)
        self.stops.adopt(snapshot)
        self.breakers.adopt(snapshot)

    def breaker_opened(self, message: bytes) -> None:
        """A message of the breaker channel, see ``keys.breaker_channel``. One that does not parse is ignored.

        A pod that never called the dependency reads the breaker's state with its first call.
        """
        words = message.split(b" ")
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            if words[0].startswith(PREFIX):
                self.stops.message(words[0], int(words[2][:20]))
                return
            breaker = self.breakers.get(words[0].decode("utf-8", "replace"))
            if breaker is not None:
                breaker.opened(int(words[1][:20]), int(words[2][:20]))

    def mode_changed(self, mode: Mode, store: Store) -> None:
        """Redis is lost or back, or in a Cluster one of its nodes is."""
        if mode is not LOCAL:
            self.stops.look()
        self.breakers.mode_changed(mode, store)


def _permit_with_token(lane: CallLane, answer: RedisAnswer) -> Permit:
    """A permit for a probe of a half-open breaker, or for a call that holds a slot."""
    half_open = answer.verdict == PROBES
    return Permit(
        made=answer,
        dependency=lane.breaker.name,
        generation=answer.generation,
        token=answer.token,
        local_generation=lane.breaker.local.generation,
        state=BreakerState.HALF_OPEN if half_open else BreakerState.CLOSED,
    )
