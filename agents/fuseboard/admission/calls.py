"""Calls that leave a service: decided by the override, breaker and limits of their dependency."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import NoReturn

from fuseboard.admission.answers import Answers, Refusal
from fuseboard.admission.batch import Batcher
from fuseboard.admission.gate import Denial, Gate
from fuseboard.admission.limits import LocalLimits
from fuseboard.admission.question import FORCED_OPEN, OPEN, Answer
from fuseboard.admission.reports import Reports
from fuseboard.configuration.holder import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import Dependency
from fuseboard.contract.words import BreakerState, Outcome, OverrideMode, Reason
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.reporting.counters import Counters
from fuseboard.store.health import StoreHealth

#: Verdicts of the breaker as a caller reads them; every other refusal is for want of a free probe.
_BREAKER_REASONS = {OPEN: Reason.BREAKER_OPEN, FORCED_OPEN: Reason.FORCED_OPEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAdmission:
    environment: str
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    reports: Reports
    local: LocalLimits
    answers: Answers
    on_change: Callable[[], None]
    gates: dict[str, Gate] = field(default_factory=dict)

    async def admit(self, dependency: str) -> Permit:
        snapshot = self.configuration.snapshot
        gate = self.gate(dependency)
        override = self.override(dependency)
        self._refuse_by_what_is_known(snapshot, gate, override)
        if override is None and (wait := gate.local.wait(gate.dependency.breaker)) > 0:
            self._refuse(snapshot, gate, Refusal(Reason.BREAKER_OPEN, gate.name, wait))
        part = self.health.shared_tenths
        if part and gate.part != part:
            gate.ramp(part)
        answer: Answer | None = None
        try:
            # A breaker is one for the fleet from the first moment Redis is back; only limits ramp.
            if self.health.usable:
                answer = await self.batcher.ask(gate, 1)
            if answer is None:
                return self._decide_locally(snapshot, gate)
            if answer.granted:
                return self._permit(snapshot, gate, answer)
            self._refuse_by_answer(snapshot, gate, answer, remember=part >= 1.0)
        except BaseException:
            # Not sent after all: if this call was to be the local probe, let another be it.
            gate.local.record(Outcome.NEUTRAL, gate.dependency.breaker)
            raise

    def report(self, permit: Permit, outcome: Outcome) -> None:
        if permit.reported:
            return
        permit.reported = True
        gate = self.gate(permit.dependency)
        before = gate.local.state
        if self.override(permit.dependency) is None:
            gate.local.record(outcome, gate.dependency.breaker)
        if self.health.usable:
            gate.record(outcome, permit.generation, permit.token)
        self.counters.call(permit.dependency, outcome)
        if gate.pending:
            urgent = bool(permit.token) or outcome is Outcome.FAILURE or outcome is Outcome.SLOW
            self.reports.add(gate, urgent=urgent)
        if gate.local.state is not before:
            self.on_change()

    def gate(self, name: str) -> Gate:
        found = self.gates.get(name)
        if found is None:
            # One that nobody registered is guarded by the defaults: it is seen, and can be tripped.
            known = self.configuration.snapshot.dependency(name) or Dependency(name=name)
            found = self.gates[name] = Gate(
                environment=self.environment,
                server=self.answers.server,
                dependency=known,
                on_change=self.on_change,
                report_soon=lambda gate: self.reports.add(gate, urgent=True),
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

    def stand_alone(self) -> None:
        """Redis is gone."""
        for gate in self.gates.values():
            gate.stand_alone()

    def override(self, dependency: str) -> OverrideMode | None:
        held = self.configuration.override_in_force(dependency)
        return held.mode if held is not None else None

    def _refuse_by_what_is_known(self, snapshot: Snapshot, gate: Gate, override: OverrideMode | None) -> None:
        held = gate.dependency.override
        if override is OverrideMode.FORCED_OPEN and held is not None:
            seconds = (held.expires_at_us - self.configuration.clock.now_us()) / 1_000_000
            self._refuse(snapshot, gate, Refusal(Reason.FORCED_OPEN, gate.name, seconds))
        for limit in gate.dependency.vendor_limits:
            if limit.limit == 0 and not limit.shadow:
                self._refuse(snapshot, gate, Refusal(Reason.VENDOR_LIMIT, limit.name))
        denial = gate.denial
        if denial is not None:
            left = denial.until - monotonic()
            if left > 0:
                self._refuse(snapshot, gate, Refusal(denial.reason, denial.rule, left))
            gate.denial = None

    def _refuse_by_answer(
        self, snapshot: Snapshot, gate: Gate, answer: Answer, *, remember: bool
    ) -> NoReturn:
        seconds = answer.wait_us / 1_000_000
        if answer.blocked <= 0:
            reason = _BREAKER_REASONS.get(answer.verdict, Reason.PROBE_BUSY)
            self._refuse(snapshot, gate, Refusal(reason, gate.name, seconds))
        rule = gate.limits[answer.blocked - 1].name
        if remember:  # while ramping, a refusal by Redis says nothing about the local share
            gate.denial = Denial(Reason.VENDOR_LIMIT, rule, monotonic() + seconds)
        self._refuse(snapshot, gate, Refusal(Reason.VENDOR_LIMIT, rule, seconds))

    def _decide_locally(self, snapshot: Snapshot, gate: Gate) -> Permit:
        self.counters.decided_locally()
        blocked = self.local.take(f"d:{gate.name}", gate.limits, 1, self.health.local_part)
        if blocked is not None:
            reason = Reason.STORE_UNAVAILABLE if blocked.unavailable else Reason.VENDOR_LIMIT
            self._refuse(snapshot, gate, Refusal(reason, blocked.limit.name, blocked.wait_s))
        decision = self.answers.allow(snapshot, gate.limits, dependency=gate.name)
        return Permit(decision=decision, dependency=gate.name, generation=0)

    def _permit(self, snapshot: Snapshot, gate: Gate, answer: Answer) -> Permit:
        return Permit(
            decision=self.answers.allow(snapshot, gate.limits, answer.left, dependency=gate.name),
            dependency=gate.name,
            generation=answer.generation,
            token=answer.token,
            state=BreakerState.HALF_OPEN if answer.token else BreakerState.CLOSED,
        )

    def _refuse(self, snapshot: Snapshot, gate: Gate, refusal: Refusal) -> NoReturn:
        self.counters.call_refused(gate.name, refusal.reason)
        raise Refused(self.answers.refuse(snapshot, refusal, gate.limits, dependency=gate.name))
