"""A state machine: a pod's own breaker, with calls that wait for Redis while the breakers change."""

from collections.abc import Callable

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fuseboard.breaker.local_breaker import LocalBreaker
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.words import BreakerState, Mode, Outcome
from fuseboard.decision import Permit
from tests.agents.models.pods import NAME, Call, Pod, VirtualTime
from tests.agents.servers import give
from tests.agents.test_local_breaker import held_open

POLICY = BreakerPolicy(
    consecutive_failures=2,
    minimum_calls=10_000,
    window_s=60,
    open_ms=1_000,
    open_max_ms=1_000,
    probes=2,
    probe_lease_ms=5_000,
    successes_to_close=2,
    minimum_servers=2,
)
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Waiting:
    """A call that waits for Redis, and whether it is the probe of the pod's own breaker."""

    def __init__(self, call: Call, probe_of: int, until: float) -> None:
        self.call = call
        #: The local generation whose probe it is; 0 for none. And until when.
        self.probe_of = probe_of
        self.until = until


class Admitted:
    """A call under way. It belongs to the state of both breakers at the time of its permit."""

    def __init__(self, permit: Permit, local: int, *, probe_until: float) -> None:
        self.permit = permit
        self.local = local
        self.probe_until = probe_until


class PodMachine(RuleBasedStateMachine):
    """What must hold, however the answers of Redis, trips, outages and outcomes are ordered:

    - While the breaker is forced open, no call starts.
    - While the pod's own breaker is open, no call starts. While it is half-open, one probe does.
    - An outcome changes the pod's own breaker only if the call started in its present generation.
    - Only the probe frees the place of the probe.
    """

    def __init__(self) -> None:
        super().__init__()
        self.time = VirtualTime()
        self.applied = self.time.applied()
        self.applied.__enter__()
        self.pod = Pod(POLICY, self.time)
        self.waiting: list[Waiting] = []
        self.admitted: list[Admitted] = []
        self.fleet, self.generation = "closed", 1
        self.shared = True
        #: The pod applies an override that forces the breaker open.
        self.forced, self.revision = False, 100
        #: Failures in a row in the present generation of the pod's own breaker.
        self.counted = (self.local.generation, 0)

    def teardown(self) -> None:
        self.pod.close()
        self.applied.__exit__(None, None, None)

    @property
    def local(self) -> LocalBreaker:
        return self.pod.breaker.local

    def follow(self, change: Callable[[], object]) -> None:
        """Apply a change, and check what it did to the calls that wait."""
        before = self.local.generation, self.local.probing_until
        change()
        owners = [each for each in self.waiting if not each.call.waits and each.probe_of == before[0]]
        if self.local.generation == before[0] and not self.local.probing_until and before[1]:
            assert owners, "a call that was not the probe has freed its place"
        for each in tuple(self.waiting):
            if not each.call.waits:
                self.waiting.remove(each)
                self.ended(each)

    def ended(self, waiting: Waiting) -> None:
        """The admission of a call has ended."""
        permit = waiting.call.permit
        if permit is None:
            assert waiting.call.task.cancelled() or waiting.call.refused is not None
            return
        assert not self.forced, "a call starts after its pod has applied an override that forces it open"
        assert self.local.state is not OPEN, "a call starts while the pod's own breaker is open"
        until = 0.0
        if self.local.state is HALF_OPEN:
            until = self.local.probing_until
            assert until > self.time.now, "a call that is not the probe starts while one is due"
            assert all(
                other.local != self.local.generation or other.probe_until != until for other in self.admitted
            ), "two calls are the same probe"
        self.admitted.append(Admitted(permit, self.local.generation, probe_until=until))

    @rule()
    def a_call_comes(self) -> None:
        probing = self.local.probing_until
        call = self.pod.call()
        is_probe = self.local.state is HALF_OPEN and self.local.probing_until != probing
        waiting = Waiting(call, self.local.generation if is_probe else 0, self.local.probing_until)
        self.waiting.append(waiting)
        if not call.waits:
            self.waiting.remove(waiting)
            self.ended(waiting)

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 20))
    def a_waiting_call_is_cancelled(self, which: int) -> None:
        waiting = self.waiting[which % len(self.waiting)]
        self.follow(lambda: self.pod.run(waiting.call.task.cancel))

    @precondition(lambda self: self.pod.store.asked)
    @rule(free=st.integers(0, 2))
    def redis_answers(self, free: int) -> None:
        self.follow(lambda: self.pod.answer(self.fleet, self.generation, free))

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.05, 5.0]))
    def time_passes(self, seconds: float) -> None:
        # Calls that wait for Redis notice their deadline before anything later happens.
        first = min(seconds, self.pod.deadline_s)
        self.follow(lambda: self.pod.pass_time(first))
        self.follow(lambda: self.pod.pass_time(seconds - first))

    @precondition(lambda self: self.shared)
    @rule(state=st.sampled_from(["closed", "open", "half_open"]), announced=st.booleans())
    def the_breaker_of_the_fleet_changes(self, state: str, announced: bool) -> None:
        self.fleet, self.generation = state, self.generation + 1
        if announced and state == "open":
            message = f"{NAME} {self.generation} 1000000".encode()
            self.follow(lambda: self.pod.run(lambda: self.pod.admission.breaker_opened(message)))

    @rule()
    def redis_is_lost_or_back(self) -> None:
        self.shared = not self.shared
        self.follow(lambda: self.pod.in_mode(Mode.SHARED if self.shared else Mode.LOCAL))

    @rule()
    def an_operator_forces_it_open_or_ends_that(self) -> None:
        self.forced, self.revision = not self.forced, self.revision + 1
        configuration = self.pod.admission.configuration
        usual = msgspec.structs.replace(configuration.snapshot.policy.dependencies[0], override=None)
        policy = msgspec.structs.replace(configuration.snapshot.policy, dependencies=(usual,))
        wanted = held_open(policy, 3600, POLICY) if self.forced else policy
        self.follow(lambda: self.pod.run(lambda: give(configuration, wanted, revision=self.revision)))

    @precondition(lambda self: not self.forced and self.pod.store.asked)
    @rule(free=st.integers(0, 2))
    def an_override_overtakes_an_answer(self, free: int) -> None:
        """So that this order is not left to luck."""
        self.an_operator_forces_it_open_or_ends_that()
        self.redis_answers(free)

    @precondition(lambda self: self.admitted)
    @rule(
        which=st.integers(0, 20),
        outcome=st.sampled_from([Outcome.OK, Outcome.FAILURE, Outcome.SLOW, Outcome.NEUTRAL]),
    )
    def a_call_ends(self, which: int, outcome: Outcome) -> None:
        self.end(self.admitted.pop(which % len(self.admitted)), outcome)

    @precondition(lambda self: self.local.state is CLOSED and len(self.admitted) > 1)
    @rule()
    def the_dependency_fails(self) -> None:
        """So that trips are not left to luck: the newest calls fail."""
        for _ in range(2):
            self.end(self.admitted.pop(), Outcome.FAILURE)

    def end(self, call: Admitted, outcome: Outcome) -> None:
        pod, local = self.pod, self.local
        # Under an override, the pod's own breaker counts nothing.
        counts = not self.forced and call.local == local.generation
        belongs = counts and call.permit.generation in (0, pod.breaker.generation)
        before = (local.state, local.generation, local.probing_until)
        # Good probes count from the opening on, also if one was given up in between.
        successes = local.successes + (outcome is Outcome.OK)
        self.count(call, outcome, belongs=belongs)
        pod.run(lambda: pod.admission.report(call.permit, outcome))
        if not belongs:
            assert (local.state, local.generation, local.probing_until) == before, "a late outcome counted"
        _, row = self.counted
        if before[0] is CLOSED and belongs:
            assert (local.state is OPEN) == (row >= 2)
        elif before[0] is HALF_OPEN and belongs:
            bad = outcome in (Outcome.FAILURE, Outcome.SLOW)
            assert local.state is (OPEN if bad else CLOSED if successes >= 2 else HALF_OPEN)

    def count(self, call: Admitted, outcome: Outcome, *, belongs: bool) -> None:
        """The oracle: failures in a row in this generation."""
        generation, row = self.counted
        if generation != self.local.generation:
            row = 0
        # A slow success neither adds to the row nor ends it.
        if belongs and self.local.state is CLOSED and outcome in (Outcome.FAILURE, Outcome.OK):
            row = row + 1 if outcome is Outcome.FAILURE else 0
        self.counted = (self.local.generation, row)

    @invariant()
    def one_probe_at_most(self) -> None:
        local = self.local.generation
        now = self.time.now
        probes = [
            each
            for each in self.waiting
            if each.probe_of == local and each.until > now and self.local.state is HALF_OPEN
        ]
        out = [
            each
            for each in self.admitted
            if each.local == local and each.probe_until > now and self.local.state is HALF_OPEN
        ]
        assert len(probes) + len(out) <= 1
