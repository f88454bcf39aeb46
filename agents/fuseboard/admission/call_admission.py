"""Calls that leave a service: decided by the override, the breaker and the limits of their dependency."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from typing import NoReturn

from msgspec import Struct, field

from fuseboard.admission.account_stops import PREFIX, AccountStops
from fuseboard.admission.call_guard import CallGuards
from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.admission.lanes import CallLane
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
from fuseboard.breaker.reports import Reports
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot, TenantRules
from fuseboard.contract.policy import Dependency
from fuseboard.contract.sync import MAX_SEEN, SeenLimit
from fuseboard.contract.words import BreakerState, Mode, Outcome, OverrideMode, Reason
from fuseboard.decision import Charge, LimitStatus, Permit
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

#: Pods report for this time what a vendor has stated.
SEEN_S = 300.0

# Members of enumerations are slow to look up in Python 3.11.
CLOSED, LOCAL, OK, NEUTRAL = BreakerState.CLOSED, Mode.LOCAL, Outcome.OK, Outcome.NEUTRAL


class CallAdmission(Struct, frozen=True, kw_only=True):
    environment: str
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    reports: Reports
    local: LocalLimits
    settlements: Settlements
    leases: Leases
    decisions: DecisionBuilder
    guards: CallGuards
    probes: Probes
    on_change: Callable[[], None]
    stops: AccountStops
    breakers: dict[str, FleetBreaker] = field(default_factory=dict)
    #: Dependency and limit -> the number that the vendor has stated last, and when (monotonic seconds).
    stated: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    #: Dependency -> calls that the vendor has refused because of a limit.
    limited: dict[str, int] = field(default_factory=dict)
    #: Dependency and limit -> the number that applies instead of the configured one.
    followed: dict[tuple[str, str], int] = field(default_factory=dict)

    # Admit a call

    def lane(self, dependency: str, costs: Costs, tenant: str, rules: TenantRules | None) -> CallLane:
        """``rules`` are those of ``tenant`` when its quotas on the dependency bind too."""
        breaker = self.breakers.get(dependency) or self.breaker(dependency)
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
        if breaker.local.state is not CLOSED and self.override(breaker.name) is None:
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
        if override is None or self.override(breaker.name) is not OverrideMode.FORCED_OPEN:
            return None
        left_us = override.expires_at_us - self.configuration.clock.now_us()
        return Refusal(Reason.FORCED_OPEN, breaker.name, left_us / 1_000_000)

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

    def report(self, permit: Permit, outcome: Outcome, cooldown_ms: int, elapsed_s: float | None) -> None:
        """Count how a permitted call ended, once."""
        if permit.reported:
            return
        permit.reported = True
        if elapsed_s is not None and outcome is not NEUTRAL:
            self.counters.call_took(permit.dependency, elapsed_s)
        if permit.slot is not None:
            permit.slot.end(outcome is not NEUTRAL)
        breaker = self.breakers.get(permit.dependency) or self.breaker(permit.dependency)
        tally = permit.tally
        if (
            tally is None
            or outcome is not OK
            or cooldown_ms
            or breaker.local.state is not CLOSED
            or breaker.overridden
            or self.stops.stopped
        ):
            self._report_in_full(breaker, permit, outcome, cooldown_ms)
            return
        # The usual success: one number now. Everything else is counted with the next report.
        tally.ok += 1
        if not tally.scheduled:
            self.reports.tally(tally)

    def _report_in_full(
        self, breaker: FleetBreaker, permit: Permit, outcome: Outcome, cooldown_ms: int
    ) -> None:
        """Free the slots, count the outcome in both breakers, and send it to Redis soon."""
        if permit.probe is not None:
            permit.probe.end()
        for charge in permit.decision.charges:
            if charge.local or charge.demand.holds_slots:
                self.finish(charge)
        if cooldown_ms and outcome is NEUTRAL:
            self.limited[permit.dependency] = self.limited.get(permit.dependency, 0) + 1
        # Count the successes before this outcome first.
        breaker.tally.count()
        self.counters.call(permit.dependency, outcome, permit.failure)
        tally = permit.tally
        local_generation = permit.local_generation if tally is None else tally.local_generation
        if not breaker.overridden or self.override(breaker.name) is None:
            breaker.record_locally(outcome, permit.generation, local_generation)
        probe = permit.token if permit.state is BreakerState.HALF_OPEN else ""
        if permit.generation and self.health.mode is not LOCAL:
            breaker.record(outcome, permit.generation, probe)
        if cooldown_ms:
            breaker.cool_down(cooldown_ms, permit.generation)
        if permit.account_refused and not (permit.account_spent and self.stops.refused(breaker.name)):
            breaker.stop_here()
        elif outcome is OK or outcome is Outcome.SLOW:
            self.stops.served(breaker.name)
        bad = outcome is Outcome.FAILURE or outcome is Outcome.SLOW
        urgent = bad or bool(probe or cooldown_ms)
        if urgent or not breaker.scheduled:
            self.reports.add(breaker, urgent=urgent)
        if outcome is OK and permit.generation and permit.generation == breaker.generation:
            self.reports.send_first_success(breaker)

    def finish(self, charge: Charge) -> None:
        """The call has ended: free the slots it held, once."""
        if charge.account.owner is not self.decisions or not charge.account.end():
            return
        if charge.local:
            self.local.free(charge.demand)
        elif charge.demand.holds_slots:
            self.settlements.free(charge.domain, charge.demand, charge.token)

    def note_left(self, permit: Permit, stated: Mapping[str, tuple[int, int]], until: float) -> None:
        """The answer to a call of this permit states what is left of the vendor's limits, and their numbers.

        What others have spent is charged in Redis, if the vendor has less left than Redis had.
        """
        now = monotonic()
        self.stated.update({(permit.dependency, name): (said, now) for name, (_, said) in stated.items()})
        if self.health.mode is not Mode.SHARED:
            return  # in a ramp, Redis has a part of the limit only
        for charge in permit.decision.charges:
            demand = charge.demand
            own = charge.account.owner is self.decisions and charge.domain == f"d:{permit.dependency}"
            if charge.local or not own:
                continue
            known = demand.left or (None,) * len(demand.refs)
            for ref, before in zip(demand.refs, known, strict=True):
                if ref.limit.dependency or ref.limit.name not in stated:
                    continue  # a quota of the tenant, or another limit
                left, _ = stated[ref.limit.name]
                if before is None or left < before:
                    self.settlements.at_most(charge.domain, ref, left, until)

    def seen(self) -> tuple[SeenLimit, ...]:
        """The numbers that vendors have stated lately for limits, and those that are followed."""
        since = monotonic() - SEEN_S
        for key, (_, at) in tuple(self.stated.items()):
            if at < since:
                del self.stated[key]
        return tuple(
            [
                SeenLimit(
                    dependency=dependency.name,
                    limit=limit.name,
                    said=self.stated.get(key, (0, since))[0],
                    followed=self.followed.get(key, 0),
                )
                for dependency in self.configuration.snapshot.policy.dependencies
                for limit in dependency.vendor_limits
                if (key := (dependency.name, limit.name)) in self.stated or key in self.followed
            ][:MAX_SEEN]
        )

    # The breakers

    def breaker(self, name: str) -> FleetBreaker:
        """The breaker of a dependency. One that is not registered has the default policy."""
        if (found := self.breakers.get(name)) is not None:
            return found
        # One for all: a thread that asks for ``views`` may make it in the same moment.
        return self.breakers.setdefault(name, self.new_breaker(name, self.on_change))

    def new_breaker(self, name: str, on_change: Callable[[], None], *, logs: bool = True) -> FleetBreaker:
        """A new breaker, which is not in ``breakers``."""
        return FleetBreaker(
            environment=self.environment,
            server=self.decisions.server,
            dependency=self.configuration.snapshot.dependency(name) or Dependency(name=name),
            on_change=on_change,
            report_soon=lambda breaker: self.reports.add(breaker, urgent=True),
            counters=self.counters,
            settlements=self.settlements,
            leases=self.leases,
            logs=logs,
        )

    def every_breaker(self) -> Iterable[FleetBreaker]:
        """The breakers of the configuration, used or not, and those that only this pod has."""
        for dependency in self.configuration.snapshot.policy.dependencies:
            self.breaker(dependency.name)
        return tuple(self.breakers.values())

    def override(self, dependency: str) -> OverrideMode | None:
        """The override of a dependency that applies now."""
        breaker = self.breakers.get(dependency)
        if breaker is not None and not breaker.overridden:
            return None  # without reading the clock
        override = self.configuration.override_in_force(dependency)
        return override.mode if override is not None else None

    def adopt(self, snapshot: Snapshot) -> None:
        """Decide by a newer configuration from now on."""
        self.guards.adopt(snapshot)
        self.stops.adopt(snapshot)
        for breaker in tuple(self.breakers.values()):
            breaker.adopt(snapshot.dependency(breaker.name) or Dependency(name=breaker.name))

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

    def override_ended(self, dependency: str) -> None:
        """An override in the configuration was ended in Redis: decide as if it had never existed."""
        breaker = self.breakers.get(dependency)
        if breaker is not None:
            breaker.override_ended()

    def mode_changed(self, mode: Mode, store: Store) -> None:
        """Redis is lost or back, or in a Cluster one of its nodes is."""
        if mode is not LOCAL:
            self.stops.look()
        for breaker in tuple(self.breakers.values()):
            if mode is LOCAL:
                breaker.redis_lost()
            else:
                breaker.node_changed(served=store.serves(breaker.guard_keys[0]))


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
