"""The fleet's breaker of one dependency: its last known state, and outcomes that this pod has yet to report.

docs/breakers.md has the table of all states.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from math import ceil, inf
from time import monotonic

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.batching.domains import MAX_DEMANDS, binds, demand_of
from fuseboard.batching.encoding import Piece
from fuseboard.batching.fleet_leases import Leases
from fuseboard.batching.kept_demands import KeptDemands
from fuseboard.batching.redis_question import (
    ADMITS,
    COOLING_DOWN,
    FORCED_OPEN,
    OPEN,
    PROBE_BUSY,
    PROBES,
    SLOW_START,
    Question,
    RedisAnswer,
)
from fuseboard.batching.refusals import RememberedRefusal
from fuseboard.batching.settlements import Settlements
from fuseboard.batching.standing_demand import StandingDemand, refusal_reason
from fuseboard.breaker.local_breaker import LocalBreaker
from fuseboard.breaker.pending_report import PendingReport
from fuseboard.breaker.stated_measures import StatedMeasures
from fuseboard.breaker.transition_log import TransitionLog
from fuseboard.configuration.snapshot import TenantRules
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import limits_of
from fuseboard.contract.policy import Dependency, Limit
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import BreakerState, Outcome, OverrideMode, Reason
from fuseboard.reporting.counters import Counters
from fuseboard.subject import NO_SUBJECT, Costs

#: A refusal because all probe permits are taken is remembered for at most this time: one may become free at
#: any moment.
PROBE_BUSY_MEMORY_S = 0.1
#: A refusal by the breaker is believed for this time. Then Redis is asked again: an operator may have ended
#: the override, and this pod may have missed it. If Redis does not answer, the refusal still applies.
BELIEVED_S = 5.0
#: A pod whose account is not served calls the vendor again after this time. Another pod may have another key.
ACCOUNT_STOP_S = 60.0

_STATE_OF_VERDICT = {
    ADMITS: BreakerState.CLOSED,
    PROBES: BreakerState.HALF_OPEN,
    OPEN: BreakerState.OPEN,
    # This state lasts as long as the override, also if Redis is lost before it ends.
    FORCED_OPEN: BreakerState.OPEN,
    PROBE_BUSY: BreakerState.HALF_OPEN,
    SLOW_START: BreakerState.CLOSED,
}
_REASON_OF_VERDICT = {
    FORCED_OPEN: Reason.FORCED_OPEN,
    COOLING_DOWN: Reason.COOLING_DOWN,
    OPEN: Reason.BREAKER_OPEN,
}
_NO_REPORT = (-1, 0.0)
_STATES = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN)


class UncountedSuccesses:
    """Successes under one generation of both breakers that are not counted yet.

    Nearly every call ends well. So a success is one number at first, and is counted with the next
    report, or before any other outcome is counted.
    """

    __slots__ = ("breaker", "generation", "local_generation", "ok", "scheduled")

    def __init__(self, breaker: "FleetBreaker", generation: int) -> None:
        self.breaker = breaker
        self.generation = generation
        #: The local generation. A new object replaces this one when either generation changes. A permit
        #: keeps its object, so it needs no copy of the generations.
        self.local_generation = breaker.local.generation
        self.ok = 0
        #: It is in the list of tallies that will be counted.
        self.scheduled = False

    def count(self) -> None:
        """Count them in both breakers and in the metrics."""
        if self.ok:
            ok, self.ok = self.ok, 0
            self.breaker.count_successes(ok, self.generation, self.local_generation)


class FleetBreaker:
    """The domain of a dependency. ``on_change`` is called when the state of the breaker has changed."""

    def __init__(
        self,
        *,
        environment: str,
        server: str,
        dependency: Dependency,
        on_change: Callable[[], None],
        report_soon: Callable[["FleetBreaker"], None],
        counters: Counters,
        settlements: Settlements,
        leases: Leases,
        kept: KeptDemands,
        logs: bool = True,
    ) -> None:
        self.name = dependency.name
        self.gathering: Question | None = None
        self.in_flight: Question | None = None
        self.lonely = False
        self.measures = StatedMeasures(dependency.name, warns=logs)
        self.log = TransitionLog(dependency=dependency.name, server=server, enabled=logs)
        self.remembered: RememberedRefusal | None = None
        self.local = LocalBreaker()
        self.pending: defaultdict[int, PendingReport] = defaultdict(PendingReport)
        #: Outcomes that others than this pod have seen, by generation and witness.
        self.witnessed: defaultdict[tuple[int, str], PendingReport] = defaultdict(PendingReport)
        #: Its outcomes will be sent with the next report.
        self.scheduled = False
        self.environment = environment
        self.server = server
        self._counters = counters
        self._on_change = on_change
        self._report_soon = report_soon
        # The state of the fleet's breaker as last learned.
        self.state = BreakerState.CLOSED
        self.generation = 0
        self.since = monotonic()
        #: When the configuration last ended or changed an override, or reset the breaker; monotonic seconds.
        self.told_at = 0.0
        #: When an open breaker may be probed; monotonic seconds.
        self.until = 0.0
        self.window = (0, 0, 0)
        #: The generation of the last outcomes that were sent, and when; monotonic seconds.
        self._last_report = _NO_REPORT
        self.tally = UncountedSuccesses(self, 0)
        self.domain = f"d:{dependency.name}"
        #: The Cluster node that keeps this breaker cannot be asked, while others can.
        self.cut_off = False
        self._settlements = settlements
        self.refusals = settlements.refusals
        self._leases = leases
        self._kept = kept
        #: Demands by costs, and by tenant when its quotas apply; with the rules each was made from.
        self._demands: OrderedDict[object, tuple[StandingDemand, TenantRules | None]] = OrderedDict()
        #: Counters of demands, by tenant and measures.
        self._refs: dict[object, tuple[list[LimitRef], TenantRules | None]] = {}
        self.adopt(dependency)

    def adopt(self, dependency: Dependency) -> None:
        """Decide by this policy from now on."""
        before = getattr(self, "dependency", dependency)
        self.dependency = dependency
        self.store_wait_ms = dependency.store_wait_ms
        #: The configuration has an override, which may have ended since.
        self.overridden = dependency.override is not None
        policy = dependency.breaker
        # Jitter adds up to a tenth to the open time.
        open_max_us = policy.open_max_ms * 1100
        times = (policy.probe_lease_ms * 1000, open_max_us, policy.slow_start_ms * 1000)
        self._figures = (1, policy.probes, *times, self.server)
        self._rests(0, self.generation)
        named = (keys.override, keys.breaker, keys.cooldown, keys.outcomes, keys.evidence, keys.transitions)
        self.guard_keys = tuple(key(self.environment, self.name).encode() for key in named)
        self.report_keys = (*self.guard_keys, keys.cooldown_claim(self.environment, self.name).encode())
        self.end_leases()
        for demand, _ in self._demands.values():
            self.refusals.forget_demand(demand)
        self._demands.clear()
        self._refs.clear()
        self.measures.forget()
        self.remembered = None
        if dependency.reset_revision != before.reset_revision:
            self.told_at = monotonic()
            self._change_local(self.local.reset, "an operator has reset the breaker")
            self._see(BreakerState.CLOSED, self.generation, 0.0)
        elif dependency.override != before.override:
            self.override_ended()

    def override_ended(self) -> None:
        """The override was changed or ended: drop what was learned before."""
        self.told_at = monotonic()
        self.remembered = None
        self._change_local(self.local.reset, "an override was changed or has ended")
        self.until = min(self.until, monotonic())
        self._on_change()

    def release_local_probe(self, admitted: UncountedSuccesses) -> None:
        """A call that came under this ``tally`` is not made. If it was the local probe, another may be it."""
        if admitted.local_generation == self.local.generation:
            self.local.record(Outcome.NEUTRAL, self.dependency.breaker)

    def record_locally(self, outcome: Outcome, generation: int, local_generation: int) -> None:
        """Count an outcome in this pod's own breaker, if neither breaker has changed since the admission.

        ``generation`` is 0 for a call that this pod decided alone.
        """
        local, policy = self.local, self.dependency.breaker
        if local_generation != local.generation or generation not in (0, self.generation):
            return
        before = local.state
        self._change_local(lambda: local.record(outcome, policy), "outcomes of this pod")
        if local.state is not before:
            self._on_change()

    def wait_locally(self) -> float:
        """Seconds until this pod's own breaker lets a call pass; 0 if this call may be made."""
        before, generation = self.local.state, self.local.generation
        wait_s = self.local.wait(self.dependency.breaker)
        if self.local.generation != generation:
            self.tally.count()
            self.tally = UncountedSuccesses(self, self.generation)
        self.log.local(before, self.local, "its open time is over")
        return wait_s

    def _change_local(self, change: Callable[[], None], why: str) -> None:
        """Change this pod's own breaker. Later successes are counted apart if that began a generation."""
        before, generation = self.local.state, self.local.generation
        self.tally.count()
        change()
        if self.local.generation != generation:
            self.tally = UncountedSuccesses(self, self.generation)
        self.log.local(before, self.local, why)

    def demand(self, costs: Costs, tenant: str = "", rules: TenantRules | None = None) -> StandingDemand:
        """The limits of the vendor, and the tenant's quotas on this dependency."""
        key = (tenant, costs) if rules is not None else costs
        known = self._demands.get(key)
        if known is not None and known[1] is rules:
            return known[0]
        refs = self.refs(costs, tenant, rules)
        demand = demand_of(refs, costs, rules.priority if rules is not None else 50)
        self._demands[key] = (demand, rules)
        if len(self._demands) > MAX_DEMANDS:
            self._drop_demand()
        self._kept.add(self._drop_demand)
        return demand

    def _drop_demand(self) -> None:
        """Drop the oldest. Its lease ends now: a change of the breaker would not find it."""
        if not self._demands:
            return
        _, (demand, _) = self._demands.popitem(last=False)
        if demand.supply is not None:
            self._leases.revoke(demand.supply)

    def refs(
        self, costs: Costs, tenant: str, rules: TenantRules | None, *, charged: bool = False
    ) -> list[LimitRef]:
        """The counters of these measures, whatever the amounts: costs may differ from call to call.

        ``charged``: they were spent without a call, which misses no measure.
        """
        key = (tenant if rules is not None else "", tuple([measure for measure, amount in costs if amount]))
        known = self._refs.get(key)
        if known is not None and known[1] is rules:
            return known[0]
        stated = {measure for measure, _ in costs}
        if charged:
            self.measures.state(stated)
        else:
            quotas = rules.of(tenant) if rules is not None else ()
            bound = [quota.limit for quota in quotas if quota.limit.dependency == self.name]
            self.measures.note(
                stated, (*self.dependency.vendor_limits, *limits_of(self.dependency.budgets), *bound)
            )
        refs = [
            LimitRef(limit, keys.vendor_limit(self.environment, self.name, limit.name))
            for limit in self.dependency.vendor_limits
            if binds(limit, costs, NO_SUBJECT)
        ]
        refs += [
            LimitRef(limit, keys.dependency_budget(self.environment, self.name, limit.budget))
            for limit in limits_of(self.dependency.budgets)
            if binds(limit, costs, NO_SUBJECT)
        ]
        for quota in rules.of(tenant) if rules is not None else ():
            if binds(quota.limit, costs, NO_SUBJECT, dependency=self.name):
                counter = keys.dependency_quota(self.environment, self.name, quota.tenant, quota.name)
                refs.append(LimitRef(quota.limit, counter))
        if len(self._refs) >= MAX_DEMANDS:
            self._refs.clear()
        self._refs[key] = (refs, rules)
        self._kept.add(self._drop_refs)
        return refs

    def _drop_refs(self) -> None:
        """Drop the oldest."""
        if self._refs:
            del self._refs[next(iter(self._refs))]

    def end_leases(self) -> None:
        """The breaker has changed: nothing leased under its old state may be spent."""
        for demand, _ in self._demands.values():
            if demand.supply is not None:
                self._leases.revoke(demand.supply)

    # The domain, for the batcher

    def put(self, keys: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], Piece]:
        return self.guard_keys[:3] + keys + self.guard_keys[3:], self._guard

    def _rests(self, text: str | int, generation: int) -> None:
        """The breaker is closed and unchanged for as long as its key contains exactly ``text``.

        Without a text, ``generation`` is the last one seen: if Redis does not have it, data was lost.
        """
        self._guard = Piece(*self._figures, text, generation)

    def learned(self, verdict: int, generation: int, wait_us: int, rest: str, sent_at: float) -> None:
        if self.remembered is not None and self._is_kept(verdict, generation, rest):
            return
        if verdict == ADMITS and self.state is BreakerState.CLOSED and generation == self.generation:
            if rest:
                self._rests(rest, generation)
            return
        if sent_at < self.told_at or (generation < self.generation and sent_at < self.since):
            return  # asked before a change that this pod already knows
        now = monotonic()
        seconds = wait_us / 1_000_000
        if (reason := _REASON_OF_VERDICT.get(verdict)) is not None:
            self._remember(reason, now + seconds)
        elif verdict == PROBE_BUSY:
            self._remember(Reason.PROBE_BUSY, now + min(seconds, PROBE_BUSY_MEMORY_S))
        if (state := _STATE_OF_VERDICT.get(verdict)) is not None:
            self._see(state, generation, now + seconds)

    def _is_kept(self, verdict: int, generation: int, rest: str) -> bool:
        """Whether a refusal about which Redis was asked again applies on: Redis has lost the breaker."""
        before, now = self.remembered, monotonic()
        if before is None or before.left_s(now):
            return False
        self.remembered = None  # this answer replaces it
        lost = generation < self.generation or rest.endswith("lost")
        if verdict != ADMITS or not lost or before.until <= now:
            return False
        self._remember(before.reason, before.until)
        return True

    def reason_of(self, limit: Limit) -> Reason:
        return refusal_reason(limit, Reason.QUOTA if limit.dependency else Reason.VENDOR_LIMIT)

    def unused(self, demand: Demand, answer: RedisAnswer) -> None:
        self._settlements.give_back(self.domain, demand, answer)
        if answer.verdict == PROBES:
            self.pending[answer.generation].probes.append((answer.token, 0))
            self._report_soon(self)

    # Outcomes

    def count_successes(self, calls: int, generation: int, local_generation: int) -> None:
        """Count successes that were collected under these generations."""
        self._counters.calls_ok(self.name, calls)
        if generation == self.generation and local_generation == self.local.generation:
            self.local.count_successes(calls)
        pending = self.pending[generation]
        pending.ok += calls
        pending.tail = 0

    def record(self, outcome: Outcome, generation: int, probe: str, witness: str = "") -> None:
        """Keep an outcome for the fleet's breaker. ``probe`` is the token of a half-open permit.

        ``witness``: who saw it, if not this pod. One probe decides, whoever saw it.
        """
        if witness and not probe:
            self.witnessed[generation, witness].add(outcome, probe)
        else:
            self.pending[generation].add(outcome, probe)

    def renew_probe(self, generation: int, token: str) -> None:
        """The call that has this permit of the half-open breaker runs on."""
        lease_us = self.dependency.breaker.probe_lease_ms * 1000
        self.pending[generation].probes.append((token, lease_us))

    def note_sent(self, generation: int, outcomes: PendingReport) -> None:
        """These outcomes are on their way to Redis."""
        if generation == self.generation and (outcomes.ok or outcomes.failure or outcomes.slow):
            self._last_report = (generation, monotonic())

    def report_failed(self) -> None:
        """Redis may not know the outcomes that were sent last."""
        self._last_report = _NO_REPORT

    def needs_immediate_report(self, interval_s: float) -> bool:
        """Whether the next success must be sent at once, because Redis has no recent outcome of this pod."""
        generation, at = self._last_report
        window_s = self.dependency.breaker.window_s
        counts_s = max(window_s / 2, window_s - 2 * interval_s)
        return generation != self.generation or monotonic() - at >= counts_s

    def cool_down(self, milliseconds: int, generation: int) -> None:
        """The vendor asked not to be called: stop here at once, and report it to the fleet."""
        self._stop(milliseconds / 1000)
        pending = self.pending[generation]
        pending.cooldown_ms = max(pending.cooldown_ms, milliseconds)

    def stop_here(self) -> None:
        """The vendor does not serve the account of this pod: stop its calls, but not those of other pods."""
        self._stop(ACCOUNT_STOP_S)

    def _stop(self, seconds: float) -> None:
        """Make no call for this time, whatever Redis says."""
        until = monotonic() + seconds
        if self.remembered is None or self.remembered.ends < until:
            self.remembered = RememberedRefusal(Reason.COOLING_DOWN, self.name, until)

    def reported(self, reply: list[int], decided_at: float) -> None:
        """Take in the reply of ``report.lua``, which decided at that time (monotonic seconds)."""
        _, state, generation, remaining_us, _, calls, failures, consecutive = reply
        if calls:
            self.window = (calls, failures, consecutive)
        if generation < self.generation or decided_at < self.told_at:
            return
        self._see(_STATES[state], generation, decided_at + remaining_us / 1_000_000)
        if self.state is BreakerState.OPEN and remaining_us:
            self._remember(Reason.BREAKER_OPEN, self.until)

    def opened(self, generation: int, remaining_us: int) -> None:
        """Stop calls for ``remaining_us`` and end leases, at once. With 0 us, Redis is asked again."""
        if generation <= self.generation:
            return
        longest_us = self.dependency.breaker.open_max_ms * 1100
        self._see(BreakerState.OPEN, generation, monotonic() + min(remaining_us, longest_us) / 1_000_000)
        self._remember(Reason.BREAKER_OPEN, self.until)

    def _remember(self, reason: Reason, until: float) -> None:
        """Repeat this refusal of Redis until then, or until Redis is asked again. A longer stop stays."""
        refusal = RememberedRefusal(reason, self.name, until, monotonic() + BELIEVED_S)
        before = self.remembered
        if before is None or before.believed_until < inf or before.until < refusal.ends:
            self.remembered = refusal

    def _see(self, state: BreakerState, generation: int, until: float) -> None:
        changed = state is not self.state or generation != self.generation
        if changed:
            self.tally.count()
            self._rests(0, generation)
            self.since = monotonic()
            self.end_leases()
            # The fleet's decision is newer than what this pod concluded alone.
            alone = self.local.state
            self.local.reset()
            self.log.local(alone, self.local, "replaced by the state of the fleet's breaker")
        before = self.state
        self.state, self.generation = state, generation
        self.log.fleet(before, state, generation=generation, until=until, window=self.window)
        if changed and state is BreakerState.CLOSED:
            self.window = (0, 0, 0)
        self.until = until if state is BreakerState.OPEN else 0.0
        if changed:
            self.tally = UncountedSuccesses(self, generation)
            self._on_change()

    def node_changed(self, *, served: bool) -> None:
        """A node of the Redis Cluster, which keeps this breaker, was lost or is back."""
        if not served and not self.cut_off:
            self.redis_lost()
        self.cut_off = not served

    def redis_lost(self) -> None:
        """Redis is lost: continue from the last shared state with this pod's own breaker."""
        if self.state is not BreakerState.CLOSED and self.local.state is BreakerState.CLOSED:
            self._change_local(
                lambda: self.local.take_over(self.until, self.dependency.breaker), "Redis is unavailable"
            )
        self.pending.clear()
        self.witnessed.clear()
        if self.remembered is not None and self.remembered.reason is not Reason.COOLING_DOWN:
            self.remembered = None

    def deciding(self, *, local: bool) -> "FleetBreaker | LocalBreaker":
        """The breaker that decides: the fleet's, or this pod's own. ``local``: Redis does not answer."""
        alone = local or (self.state is BreakerState.CLOSED and self.local.state is not BreakerState.CLOSED)
        return self.local if alone else self

    def view(self, override: OverrideMode | None, *, local: bool) -> BreakerView:
        """The figures of this breaker for the next heartbeat."""
        now, one = monotonic(), self.deciding(local=local)
        remaining = max(0.0, one.until - now) if one.state is BreakerState.OPEN else 0.0
        calls, failures, consecutive = self.window
        return BreakerView(
            dependency=self.name,
            state=one.state,
            generation=self.generation,
            for_ms=int((now - one.since) * 1000),
            remaining_ms=ceil(remaining * 1000),
            override=override,
            local=one is self.local,
            window_calls=calls,
            window_failures=failures,
            consecutive_failures=consecutive,
        )
