"""How calls with a permit ended, and what their answers state about the limits of the vendor."""

from collections.abc import Mapping

from msgspec import Struct, field

from fuseboard.admission.account_stops import AccountStops
from fuseboard.admission.decisions import DecisionBuilder
from fuseboard.admission.pod_breakers import PodBreakers
from fuseboard.admission.seen_limits import SeenLimits, Totals
from fuseboard.batching.settlements import Settlements
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.breaker.reports import Reports
from fuseboard.calling.failures import ROOM_AGAIN_MS
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.sync import SeenLimit
from fuseboard.contract.words import BreakerState, Mode, Outcome, Reason
from fuseboard.decision import Charge, Permit
from fuseboard.reporting.counters import Counters
from fuseboard.store.health import StoreHealth
from fuseboard.without_redis.local_limits import LocalLimits

# Members of enumerations are slow to look up in Python 3.11.
CLOSED, LOCAL, OK, NEUTRAL = BreakerState.CLOSED, Mode.LOCAL, Outcome.OK, Outcome.NEUTRAL


#: Calls of one dependency whose times are kept until the next report.
MAX_TIMES = 1_000


class CallOutcomes(Struct, frozen=True, kw_only=True):
    configuration: Configuration
    counters: Counters
    health: StoreHealth
    reports: Reports
    local: LocalLimits
    settlements: Settlements
    decisions: DecisionBuilder
    stops: AccountStops
    breakers: PodBreakers
    #: The limits that vendors have stated lately, for heartbeats.
    seen_limits: SeenLimits = field(default_factory=SeenLimits)
    #: Dependency -> calls that the vendor has refused because of a limit.
    limited: dict[str, int] = field(default_factory=dict)
    #: Dependency -> such calls whose answer asked for no longer pause than any 429: perhaps too many at once.
    limited_shortly: dict[str, int] = field(default_factory=dict)
    #: Dependency and limit -> the number that applies instead of the configured one.
    followed: dict[tuple[str, str], int] = field(default_factory=dict)
    #: Dependency and limit -> the present and the lowest time of the calls of all pods, in ms.
    paces: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    #: Dependency whose limits follow the time of its calls -> those of this pod since its last report.
    took: dict[str, list[float]] = field(default_factory=dict)

    def report(self, permit: Permit, outcome: Outcome, cooldown_ms: int, elapsed_s: float | None) -> None:
        """Count how a permitted call ended, once."""
        if permit.reported:
            return
        permit.reported = True
        if elapsed_s is not None and outcome is not NEUTRAL:
            self.counters.call_took(permit.dependency, elapsed_s)
            if (took := self.took.get(permit.dependency)) is not None:
                self._note_time(took, permit, outcome, elapsed_s)
        if permit.slot is not None:
            permit.slot.end(outcome is not NEUTRAL)
        breaker = self.breakers[permit.dependency]
        tally = permit.tally
        if (
            tally is None
            or outcome is not OK
            or cooldown_ms
            or breaker.local.state is not CLOSED
            or breaker.overridden
            or self.stops.stopped
            or permit.witness
        ):
            self._report_in_full(breaker, permit, outcome, cooldown_ms)
            return
        # The usual success: one number now. Everything else is counted with the next report.
        tally.ok += 1
        if not tally.scheduled:
            self.reports.tally(tally)

    def _note_time(self, took: list[float], permit: Permit, outcome: Outcome, elapsed_s: float) -> None:
        """An error may come fast, and says nothing of the queue. A timeout does."""
        failed = outcome is Outcome.FAILURE and (permit.failure is None or permit.failure[0] != "timeout")
        if len(took) < MAX_TIMES and not failed:
            took.append(elapsed_s)

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
            if cooldown_ms <= ROOM_AGAIN_MS:
                self.limited_shortly[permit.dependency] = self.limited_shortly.get(permit.dependency, 0) + 1
        # Count the successes before this outcome first.
        breaker.tally.count()
        self.counters.call(permit.dependency, outcome, permit.failure)
        tally = permit.tally
        local_generation = permit.local_generation if tally is None else tally.local_generation
        # One bad witness must not stop the calls that this pod decides for the others.
        others = bool(permit.witness and permit.generation) and breaker.local.state is CLOSED
        if not others and (not breaker.overridden or self.breakers.override(breaker.name) is None):
            breaker.record_locally(outcome, permit.generation, local_generation)
        probe = permit.token if permit.state is BreakerState.HALF_OPEN else ""
        if permit.generation and self.health.mode is not LOCAL:
            breaker.record(outcome, permit.generation, probe, permit.witness)
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
        self.seen_limits.note(permit.dependency, stated)
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
        """The numbers that vendors have stated lately, those followed, and what became of calls."""
        return self.seen_limits.report(
            self.configuration.snapshot.policy.dependencies,
            followed=self.followed,
            totals=self._totals,
            paces=self.paces,
        )

    def _totals(self, dependency: str, limit: str) -> Totals:
        sent, blocked = self.counters.calls_of(dependency, Reason.VENDOR_LIMIT)
        others = self.settlements.others.get((f"d:{dependency}", limit), 0)
        return sent, self.limited.get(dependency, 0), blocked, others
