"""Early leases: the bounds of fleet leases hold, and no key is hot because of them.

Pods run as in an application, on the real script of a real Redis. Time and the order of events are
Hypothesis'.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
import redis
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fuseboard.batching import demand, fleet_leases
from fuseboard.batching.redis_question import decode_reply
from fuseboard.composition import compose_admission
from fuseboard.contract.limits import lease_length_ms
from fuseboard.contract.policy import Limit, Policy, Tier, Tuning
from fuseboard.contract.scripts import ADMIT, SETTLE, Script, read_script
from fuseboard.contract.words import Algorithm, Mode
from fuseboard.reporting.counters import Counters
from fuseboard.store.store import OnReply, Word
from tests.agents.models.pods import TURNS, HeldStore, VirtualTime
from tests.agents.mutating import Mutant, mutated
from tests.agents.scripts import START_US, VIRTUAL_CLOCK
from tests.agents.servers import configured

PODS = 2
#: 100 calls per second on average, 400 at once.
QUOTA = Limit(name="requests", limit=1_000, window_ms=10_000, burst=400)
#: Of the limit, what all pods together may hold (docs/limits.md).
HELD_PART = 0.2
LEASE_S = lease_length_ms(QUOTA) / 1000
#: Times and decimals of a float that was added up.
ROUNDING = 1e-6

_SCRIPTS = {script.name: read_script(script.name, clock=VIRTUAL_CLOCK) for script in (ADMIT, SETTLE)}

#: Which pod is asked for how many calls, and how many milliseconds pass then.
Steps = list[tuple[int, int, int]]
_PODS = st.integers(0, PODS - 1)
_CALLS = st.sampled_from((0, 3, 3, 10, 60))
_PASS_MS = st.sampled_from((20, 60, 110, 300))
#: Mostly a steady rate, which is worth a lease, and sometimes a burst, which spends the limit.
STEPS = st.lists(
    st.tuples(_PODS, _CALLS, _PASS_MS),
    min_size=20,
    max_size=60,
)
USUAL = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    suppress_health_check=list(HealthCheck),
)


class RealScripts(HeldStore):
    """Runs each script at once, at the time of the model, and notes what was left."""

    def __init__(self, client: redis.Redis, time: VirtualTime) -> None:
        super().__init__()
        self._client, self._time = client, time
        #: What was left of the only limit, by the last answer before this step and by those in it.
        self.known = [0]

    def run(
        self, script: Script, keys: tuple[bytes, ...], arguments: Sequence[Word], on_reply: OnReply
    ) -> None:
        loaded = _SCRIPTS[script.name]
        now_us = START_US + round((self._time.now - 1000.0) * 1_000_000)
        raw: Any = self._client.evalsha(loaded.sha, len(keys), *keys, *arguments, now_us)
        if script is ADMIT:
            figures = decode_reply(raw).figures
            # One figure when there was enough for all, otherwise what each group got, and then what is left.
            self.known.append(figures[0] if len(figures) == 1 else figures[-3])
        on_reply(raw)


class Pod:
    def __init__(self, client: redis.Redis, time: VirtualTime, quota: Limit) -> None:
        tier = Tier(name="all", quotas=(quota,))
        policy = Policy(environment="production", default_tier="all", tiers=(tier,), tuning=Tuning())
        self.time = time
        self.leased = 0
        self.loop = asyncio.SelectorEventLoop()
        self.loop.time = time  # type: ignore[method-assign]
        self.counters = Counters()
        self.store = RealScripts(client, time)
        self.admission = compose_admission(
            configuration=configured(policy, live_servers=PODS),
            counters=self.counters,
            store=self.store,
            server="web-1",
            environment="production",
            on_change=lambda: None,
        )
        self.do(lambda: self.admission.health._change(Mode.SHARED, "the model"))

    def holding(self) -> set[Any]:
        """Begin a step: the leases it has, by identity."""
        del self.store.known[:-1]
        return {one.lease for one in self.supplies}

    def do(self, what: Callable[[], object]) -> None:
        async def turns() -> None:
            what()
            for _ in range(TURNS):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    def run(self, calls: int) -> list[float]:
        """Ask for calls at once; the times at which they were admitted."""

        async def turns() -> list[float]:
            asking = [asyncio.ensure_future(self.admission.admit_request("acme")) for _ in range(calls)]
            for _ in range(TURNS):
                await asyncio.sleep(0)
            decisions = [task.result() for task in asking]
            assert {decision.mode for decision in decisions} <= {Mode.SHARED}
            self.leased += sum(decision.leased for decision in decisions)
            return [self.time.now for decision in decisions if decision.allowed]

        return self.loop.run_until_complete(turns())

    @property
    def supplies(self) -> list[Any]:
        return list(self.admission.leases._supplies)

    def close(self) -> None:
        self.do(self.admission.leases.stop)
        self.loop.close()


def play(client: redis.Redis, steps: Steps, quota: Limit = QUOTA) -> tuple[int, int]:
    """Play the steps and check the bounds. Returns the calls that were leased, and those reported as such."""
    client.flushall()
    for script in _SCRIPTS.values():
        client.script_load(script.text)
    time = VirtualTime()
    with time.applied():
        pods = [Pod(client, time, quota) for _ in range(PODS)]
        try:
            made: list[float] = []
            for number, calls, pass_ms in steps:
                held = [pod.holding() for pod in pods]
                made += pods[number].run(calls)
                check_leases(pods, held, quota)
                time.now += pass_ms / 1000
                held = [pod.holding() for pod in pods]
                for pod in pods:
                    pod.run(0)
                check_leases(pods, held, quota)
            check_rate(made, quota)
        finally:
            for pod in pods:
                pod.close()
    reported = sum(
        rule.leased for pod in pods for tenant in pod.counters.wire().tenants for rule in tenant.rules
    )
    return sum(pod.leased for pod in pods), reported


def check_rate(made: list[float], quota: Limit) -> None:
    """No span of time has more calls than fit in the bucket and are refilled in it and in a lease."""
    refill = quota.limit / quota.window_ms * 1000
    most = quota.burst + refill * LEASE_S + ROUNDING
    lowest = math.inf
    for number, moment in enumerate(made):
        # Calls up to here, less what was refilled: the span with the most begins where that was lowest.
        lowest = min(lowest, number - refill * moment)
        assert number + 1 - refill * moment - lowest <= most, "more calls than the published bound"


def check_leases(pods: list[Pod], held: list[set[Any]], quota: Limit) -> None:
    now = pods[0].time.now
    leases = [(pod, one.lease) for pod in pods for one in pod.supplies if one.lease is not None]
    unspent = sum(lease.tokens for _, lease in leases)
    assert unspent <= quota.burst * HELD_PART, "the fleet holds more than its part of the limit"
    for pod, lease in leases:
        assert not lease.tokens or now - lease.begun < LEASE_S + ROUNDING, "a lease does not end"
        if lease not in held[pods.index(pod)]:
            assert 2 * max(pod.store.known) > quota.burst, "a limit that is half used is leased"


@contextmanager
def with_bug(module: ModuleType, mutant: Mutant) -> Iterator[None]:
    twin: Any = mutated(module, mutant)
    with ExitStack() as stack:
        if module is fleet_leases:
            stack.enter_context(patch("fuseboard.composition.Leases", twin.Leases))
            stack.enter_context(
                patch("fuseboard.admission.request_admission.DemandSupply", twin.DemandSupply)
            )
        else:
            stack.enter_context(patch.object(fleet_leases, "has_ample_room", twin.has_ample_room))
            stack.enter_context(patch.object(fleet_leases, "may_be_leased_early", twin.may_be_leased_early))
        yield


def check(client: redis.Redis, how: settings) -> None:
    reached = 0

    @how
    @given(STEPS)
    def holds(steps: Steps) -> None:
        nonlocal reached
        leased, reported = play(client, steps)
        reached += leased
        assert reported == 0, "an early lease is reported like that of a hot key"

    holds()
    assert reached > 0, "no call was ever leased"


def test_the_bounds_of_leases_hold_for_early_ones(limits: redis.Redis):
    check(limits, USUAL)


MUTANTS = [
    (demand, Mutant("a scarce limit is leased", "2 * still > most_at_once", "2 * still >= 0 * most_at_once")),
    (fleet_leases, Mutant("a lease never ends", "self.until = begun + length_s", "self.until = begun + 60")),
    (
        fleet_leases,
        Mutant("each pod holds all the part", "HELD_PART / servers / cost", "HELD_PART / cost"),
    ),
    (fleet_leases, Mutant("pods hold all of it", "HELD_PART = 0.2", "HELD_PART = 1.0")),
    (fleet_leases, Mutant("early leases are reported", "lease.counted, lease.hot)", "lease.counted, True)")),
    (fleet_leases, Mutant("a burst makes a key hot", "min(supply.rate, sustained)", "supply.rate")),
    (
        fleet_leases,
        Mutant("an answer to a lease is not noted", "supply.single.left = answer.left", "answer.left"),
    ),
    (
        fleet_leases,
        Mutant("early leases are never taken", "            supply.early\n", "            False\n"),
    ),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("module", "mutant"), MUTANTS, ids=[mutant.name for _, mutant in MUTANTS])
def test_a_bug_is_noticed(limits: redis.Redis, module: ModuleType, mutant: Mutant):
    with with_bug(module, mutant), pytest.raises(AssertionError):
        check(limits, HUNT)


@pytest.mark.parametrize(("per_s", "leased"), [(15, False), (25, True)])
def test_only_a_key_that_is_asked_for_often_is_leased(limits: redis.Redis, per_s: int, leased: bool):
    steps = [(0, 1, round(1000 / per_s))] * 5 * per_s
    assert (play(limits, steps)[0] > 0) is leased


def test_a_pod_whose_part_is_less_than_two_calls_gets_no_lease(limits: redis.Redis):
    """Otherwise pods together would hold more than the part of the limit."""
    steps = [(number, 1, 20) for number in (0, 1)] * 100
    small = replace(QUOTA, limit=10_000, burst=15)
    assert play(limits, steps, small)[0] == 0
    assert play(limits, steps, replace(small, burst=20))[0] > 0


@pytest.mark.parametrize(
    "other",
    [
        {"lease_above": 1_000},
        {"shadow": True},
        {"algorithm": Algorithm.SLIDING_WINDOW, "lease_above": 1_000},
        {"algorithm": Algorithm.FIXED_WINDOW},
    ],
)
def test_other_limits_are_never_leased_early(other: dict[str, Any]):
    assert demand.may_be_leased_early(QUOTA)
    assert not demand.may_be_leased_early(replace(QUOTA, **other))
