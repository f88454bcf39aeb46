"""Calls that leave a service: decided by the override, breaker and limits of their dependency."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import NoReturn

from fuseboard.admission.decisions import DecisionBuilder, Refusal
from fuseboard.admission.lanes import CallLane
from fuseboard.batching.batch import Batcher
from fuseboard.batching.distribute import give_back
from fuseboard.batching.fleet_leases import Leases, Supply
from fuseboard.batching.question import COOLING_DOWN, FORCED_OPEN, OPEN, PROBES, SLOW_START, Answer
from fuseboard.batching.settlements import Settlements
from fuseboard.batching.standing_demand import refusal_reason
from fuseboard.breaker.fleet_breaker import Gate
from fuseboard.breaker.reports import Reports
from fuseboard.configuration.holder import Configuration
from fuseboard.configuration.snapshot import Snapshot, TenantRules
from fuseboard.contract.policy import Dependency
from fuseboard.contract.words import BreakerState, Mode, Outcome, OverrideMode, Reason
from fuseboard.decision import Charge, Decision, LimitStatus, Permit
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.standalone.local_limits import LocalLimits
from fuseboard.store.connection import Store
from fuseboard.store.health import StoreHealth
from fuseboard.subject import Costs

#: Verdicts of the breaker as a caller reads them; every other refusal is for want of a free probe.
_BREAKER_REASONS = {
    OPEN: Reason.BREAKER_OPEN,
    SLOW_START: Reason.BREAKER_OPEN,
    FORCED_OPEN: Reason.FORCED_OPEN,
    COOLING_DOWN: Reason.COOLING_DOWN,
}


# Members of enumerations are slow to look up in Python 3.11.
CLOSED, LOCAL, OK = BreakerState.CLOSED, Mode.LOCAL, Outcome.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAdmission:
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
    on_change: Callable[[], None]
    gates: dict[str, Gate] = field(default_factory=dict)

    def lane(self, dependency: str, costs: Costs, tenant: str, rules: TenantRules | None) -> CallLane:
        """``rules`` are those of ``tenant``, when its quotas on the dependency bind too."""
        gate = self.gates.get(dependency) or self.gate(dependency)
        return CallLane(
            self.decisions,
            self.configuration.snapshot,
            gate,
            gate.demand(costs, tenant, rules),
            self.configuration.changes,
        )

    async def admit(self, lane: CallLane) -> Permit:
        gate, demand = lane.gate, lane.demand
        if (
            gate.denial is not None
            or demand.denial is not None
            or gate.held
            or gate.local.state is not CLOSED
            or demand.never is not None
        ):
            self._look_closely(lane)
        if demand.leasable and (permit := self._from_stock(lane)) is not None:
            return permit
        # A breaker is one for the fleet from the first moment Redis is back; only limits ramp.
        if self.health.mode is LOCAL:
            return self._decide_locally(lane)
        caller = self.batcher.ask(gate, demand)
        try:
            answer = await caller
        except asyncio.CancelledError:
            give_back(gate, demand, caller)
            gate.not_sent()
            raise
        if answer is None:
            return self._decide_locally(lane)
        if not answer.granted:
            self._refuse_by_answer(lane, answer)
        if answer.signer is None:
            answer.signer, answer.mode = lane, self.health.mode
        if answer.token:
            half_open = answer.verdict == PROBES
            return Permit(
                made=answer,
                dependency=gate.name,
                generation=answer.generation,
                token=answer.token,
                state=BreakerState.HALF_OPEN if half_open else BreakerState.CLOSED,
            )
        generation, tally = answer.generation, gate.tally
        return Permit(
            made=answer,
            dependency=gate.name,
            generation=generation,
            tally=tally if tally.generation == generation else None,
        )

    def _from_stock(self, lane: CallLane) -> Permit | None:
        """A call that was leased before, while the fleet's breaker is closed."""
        gate, demand = lane.gate, lane.demand
        if gate.state is not CLOSED or gate.held:
            return None
        if demand.supply is None:

            def sign(answer: Answer) -> Decision:
                charge = Charge(gate.domain, demand, answer.at_us, "")
                limits = demand.statuses(answer.left)
                return self.decisions.allow(
                    lane.snapshot, limits, dependency=gate.name, charges=(charge,), leased=True
                )

            demand.supply = Supply(gate, demand, sign, lambda calls: None)
        lease = self.leases.spend(demand.supply)
        if lease is None:
            self.leases.note(demand.supply)
            return None
        return Permit(made=lease.decision, dependency=gate.name, generation=lease.answer.generation)

    def report(self, permit: Permit, outcome: Outcome, cooldown_ms: int) -> None:
        if permit.reported:
            return
        permit.reported = True
        gate = self.gates.get(permit.dependency) or self.gate(permit.dependency)
        tally = permit.tally
        if (
            tally is not None
            and outcome is OK
            and not cooldown_ms
            and gate.local.state is CLOSED
            and not gate.held
        ):
            tally.ok += 1
            if not tally.scheduled:
                self.reports.tally(tally)
            return
        for charge in permit.decision.charges:
            if charge.local or charge.demand.holds_slots:
                self.finish(charge)
        gate.tally.count()
        self.counters.call(permit.dependency, outcome)
        before = gate.local.state
        if not gate.held or self.override(permit.dependency) is None:
            gate.local.record(outcome, gate.dependency.breaker)
        probe = permit.token if permit.state is BreakerState.HALF_OPEN else ""
        if permit.generation and self.health.mode is not Mode.LOCAL:
            gate.record(outcome, permit.generation, probe)
        if cooldown_ms:
            gate.cool_down(cooldown_ms, permit.generation)
        if outcome is not Outcome.OK or not gate.scheduled:
            bad = outcome is Outcome.FAILURE or outcome is Outcome.SLOW
            self.reports.add(gate, urgent=bad or bool(probe or cooldown_ms))
        elif probe or cooldown_ms:
            self.reports.add(gate, urgent=True)
        if gate.local.state is not before:
            self.on_change()

    def finish(self, charge: Charge) -> None:
        """The call has ended: free the slots it held."""
        if charge.local:
            self.local.free(charge.demand)
        elif charge.demand.holds_slots:
            self.settlements.free(charge.domain, charge.demand, charge.token)

    def gate(self, name: str) -> Gate:
        found = self.gates.get(name)
        if found is None:
            # One that nobody registered is guarded by the defaults: it is seen, and can be tripped.
            known = self.configuration.snapshot.dependency(name) or Dependency(name=name)
            found = self.gates[name] = Gate(
                environment=self.environment,
                server=self.decisions.server,
                dependency=known,
                on_change=self.on_change,
                report_soon=lambda gate: self.reports.add(gate, urgent=True),
                counters=self.counters,
                settlements=self.settlements,
                leases=self.leases,
            )
        return found

    def every_gate(self) -> Iterable[Gate]:
        """Those of the policy, called or not, and those only this server knows."""
        for dependency in self.configuration.snapshot.policy.dependencies:
            self.gate(dependency.name)
        return tuple(self.gates.values())

    def adopt(self, snapshot: Snapshot) -> None:
        """Decide by a newer configuration from now on."""
        for gate in self.gates.values():
            gate.adopt(snapshot.dependency(gate.name) or Dependency(name=gate.name))

    def breaker_opened(self, message: bytes) -> None:
        """A breaker opened, as its channel says; what cannot be read is no news.

        Whoever never called the dependency learns of it when it does.
        """
        words = message.split(b" ")
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            gate = self.gates.get(words[0].decode("utf-8", "replace"))
            if gate is not None:
                gate.opened(int(words[1][:20]), int(words[2][:20]))

    def override_ended(self, dependency: str) -> None:
        """An override of the configuration was ended in Redis: decide as if it had never been there."""
        gate = self.gates.get(dependency)
        if gate is not None:
            gate.override_ended()

    def mode_changed(self, mode: Mode, store: Store) -> None:
        """Redis is lost or back, or in a Cluster one of its nodes is."""
        for gate in self.gates.values():
            if mode is LOCAL:
                gate.stand_alone()
            else:
                gate.node_changed(served=store.serves(gate.guard_keys[0]))

    def override(self, dependency: str) -> OverrideMode | None:
        gate = self.gates.get(dependency)
        if gate is not None and gate.dependency.override is None:
            return None  # without looking at the clock
        held = self.configuration.override_in_force(dependency)
        return held.mode if held is not None else None

    def _look_closely(self, lane: CallLane) -> None:
        """Raise ``Refused`` if what is known here already refuses the call."""
        gate, demand, held = lane.gate, lane.demand, lane.gate.dependency.override
        override = self.override(gate.name)
        if override is OverrideMode.FORCED_OPEN and held is not None:
            seconds = (held.expires_at_us - self.configuration.clock.now_us()) / 1_000_000
            self._refuse(lane, Refusal(Reason.FORCED_OPEN, gate.name, seconds))
        if (never := demand.never) is not None:
            refusal = Refusal(refusal_reason(never, Reason.VENDOR_LIMIT), never.name)
            self._refuse(lane, refusal, demand.statuses(spent=never.name))
        for holder in (gate, demand):
            if (denial := holder.denial) is not None:
                if (left_s := denial.left_s(monotonic())) > 0:
                    spent = demand.statuses(spent=denial.rule)
                    self._refuse(lane, Refusal(denial.reason, denial.rule, left_s), spent)
                holder.denial = None
        if override is None and gate.local.state is not BreakerState.CLOSED:
            wait = gate.local.wait(gate.dependency.breaker)
            if wait > 0:
                self._refuse(lane, Refusal(Reason.BREAKER_OPEN, gate.name, wait))

    def _refuse_by_answer(self, lane: CallLane, answer: Answer) -> NoReturn:
        gate, demand = lane.gate, lane.demand
        gate.not_sent()
        wait_s = answer.wait_us / 1_000_000
        if answer.blocked <= 0:
            reason = _BREAKER_REASONS.get(answer.verdict, Reason.PROBE_BUSY)
            self._refuse(lane, Refusal(reason, gate.name, wait_s))
        limit = demand.refs[answer.blocked - 1].limit
        usual = Reason.QUOTA if limit.dependency else Reason.VENDOR_LIMIT
        refusal = Refusal(refusal_reason(limit, usual), limit.name, wait_s)
        # A slot may be free any moment; and in a ramp, Redis does not speak for the local share.
        if self.health.shared_tenths >= 1.0 and refusal.reason is not Reason.CONCURRENCY:
            demand.deny(refusal.reason, refusal.rule, monotonic() + wait_s)
        self._refuse(lane, refusal, demand.statuses(answer.left))

    def _decide_locally(self, lane: CallLane) -> Permit:
        gate, demand = lane.gate, lane.demand
        self.counters.decided_locally()
        blocked = self.local.take(demand, self.health.local_part)
        if blocked is not None:
            gate.not_sent()
            usual = refusal_reason(blocked.limit, Reason.VENDOR_LIMIT)
            reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else usual
            self._refuse(lane, Refusal(reason, blocked.limit.name, blocked.wait_s), demand.statuses())
        charge = Charge("", demand, 0, "", local=True)
        decision = self.decisions.allow(
            lane.snapshot, demand.statuses(), dependency=gate.name, charges=(charge,)
        )
        return Permit(made=decision, dependency=gate.name, generation=0)

    def _refuse(self, lane: CallLane, refusal: Refusal, limits: tuple[LimitStatus, ...] = ()) -> NoReturn:
        name = lane.gate.name
        self.counters.call_refused(name, refusal.reason)
        raise Refused(self.decisions.refuse(lane.snapshot, refusal, limits, dependency=name))
