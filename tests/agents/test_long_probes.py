"""Probes that take longer than the lease of their permit: they close a breaker, and open it again."""

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.breaker.local_breaker import LocalBreaker
from fuseboard.breaker.probes import MAX_S, Probes
from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker
from fuseboard.contract.policy import BreakerPolicy, Dependency
from fuseboard.contract.words import BreakerState, Mode, Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from tests.agents.servers import Server, configured, running
from tests.agents.test_late_outcomes import admitted, report, state, with_breaker
from tests.virtual_loop import run_virtually
from tests.waiting import eventually

pytestmark = pytest.mark.both_loops

QUICK = BreakerPolicy(
    consecutive_failures=2,
    open_ms=50,
    open_max_ms=400,
    probes=2,
    # Longer than a machine pauses: a lease that ended is not renewed.
    probe_lease_ms=3_000,
    successes_to_close=2,
    minimum_servers=1,
)
POLICY = with_breaker(QUICK)


async def opened(server: Server, limits: redis.Redis) -> None:
    """Also in Redis: the pod's own breaker opens first, and its probes have no lease there."""
    report(server, [await server.admission.admit_call("payments") for _ in range(2)], Outcome.FAILURE)
    key = keys.breaker("production", "payments")
    await eventually(lambda: (limits.get(key) or b"").startswith(b"open"))
    await eventually(lambda: state(server) is BreakerState.OPEN)


def expiries(limits: redis.Redis) -> dict[str, int]:
    text = limits.get(keys.breaker("production", "payments"))
    stored = parse_breaker(text.decode() if isinstance(text, bytes) else None)
    return dict(stored.permits) if stored is not None else {}


async def outlive_their_leases(limits: redis.Redis, *permits: Permit) -> None:
    """Until each permit was renewed beyond what it was given."""
    given = expiries(limits)
    await eventually(
        lambda: all(expiries(limits).get(one.token, 0) > given.get(one.token, 0) + 300_000 for one in permits)
    )


async def test_good_calls_that_are_longer_than_a_lease_close_the_breaker(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(POLICY)) as server:
        await opened(server, limits)
        probes = [await admitted(server), await admitted(server)]
        await outlive_their_leases(limits, *probes)
        # Their places are taken while they run.
        with pytest.raises(Refused):
            await server.admission.admit_call("payments")
        report(server, probes, Outcome.OK)
        await eventually(lambda: state(server) is BreakerState.CLOSED)


async def test_a_vendor_that_hangs_opens_it_again_for_longer_each_time(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(POLICY)) as server:
        await opened(server, limits)
        lengths = []
        for _ in range(3):
            probe = await admitted(server)
            await outlive_their_leases(limits, probe)
            report(server, [probe], Outcome.FAILURE)
            await eventually(lambda: state(server) is BreakerState.OPEN)
            lengths.append(server.admission.breaker_views()[0].remaining_ms)
        assert lengths == sorted(lengths)
        assert lengths[-1] > 2 * lengths[0]


async def test_a_pod_that_ends_and_a_permit_that_is_forgotten_free_their_places(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, "web-2", configured(POLICY)) as other:
        async with running(redis_url, "web-1", configured(POLICY)) as dying:
            await opened(dying, limits)
            kept = await admitted(dying)
            forgotten = await admitted(dying)
            await outlive_their_leases(limits, kept, forgotten)
            del forgotten
            found = [await admitted(other)]
        found.append(await admitted(other))
        report(other, found, Outcome.OK)
        await eventually(lambda: state(other) is BreakerState.CLOSED)
        assert not kept.reported


async def test_without_redis_the_one_probe_keeps_its_place_while_it_runs(valkey: Valkey):
    async with running(valkey.url, configuration=configured(POLICY)) as server:
        with redis.Redis.from_url(valkey.url) as client:
            await opened(server, client)
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        probe = await admitted(server)
        local = server.admission.calls.breakers["payments"].local
        given = local.probing_until
        await eventually(lambda: local.probing_until > given + 0.3)
        with pytest.raises(Refused):
            await server.admission.admit_call("payments")
        report(server, [probe], Outcome.OK)
        report(server, [await admitted(server)], Outcome.OK)
        await eventually(lambda: local.state is BreakerState.CLOSED)


class FakeBreaker:
    """What a pod knows of a breaker, in virtual time."""

    def __init__(self, lease_ms: int = 30_000, timeout_ms: int = 30_000) -> None:
        policy = msgspec.structs.replace(QUICK, probe_lease_ms=lease_ms)
        self.dependency = Dependency(name="payments", breaker=policy, timeout_ms=timeout_ms)
        self.local = LocalBreaker()
        self.generation = 7
        self.renewed: list[float] = []

    def renew_probe(self, generation: int, token: str) -> None:
        assert (generation, token) == (7, "a.1")
        self.renewed.append(asyncio.get_running_loop().time())


def probing(breaker: Any) -> tuple[Probes, Permit]:
    probes = Probes(lambda _: None)
    permit = Permit(made=None, dependency="payments", generation=7, token="a.1", state=BreakerState.HALF_OPEN)
    return probes, probes.begin(breaker, permit)


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseboard.breaker.probes.monotonic", lambda: asyncio.get_running_loop().time())


@pytest.mark.usefixtures("virtual_clock")
@pytest.mark.parametrize("lease_ms", [100, 1_000, 30_000])
def test_no_lease_ends_before_its_call(lease_ms: int):
    async def main() -> list[float]:
        breaker = FakeBreaker(lease_ms)
        _, permit = probing(breaker)
        await asyncio.sleep(300.0)
        permit.probe.end()
        await asyncio.sleep(300.0)
        return breaker.renewed

    times = [0.0, *run_virtually(main()), 300.0]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= lease_ms / 2000
    assert len(times) <= 2 + 300_000 * 3 / lease_ms + 3


@pytest.mark.usefixtures("virtual_clock")
def test_a_call_that_never_ends_loses_its_permit_in_a_bounded_time():
    async def main(breaker: FakeBreaker) -> float:
        _, permit = probing(breaker)
        await asyncio.sleep(100_000.0)
        assert permit.probe.number
        return breaker.renewed[-1]

    assert run_virtually(main(FakeBreaker())) <= MAX_S
    assert MAX_S < run_virtually(main(FakeBreaker(timeout_ms=1_000_000))) <= 4_000.0


@pytest.mark.usefixtures("virtual_clock")
def test_a_permit_of_an_earlier_generation_is_not_renewed():
    async def main() -> list[float]:
        breaker = FakeBreaker()
        _, permit = probing(breaker)
        await asyncio.sleep(15.0)
        breaker.generation = 8
        await asyncio.sleep(300.0)
        assert not permit.reported
        return breaker.renewed

    assert run_virtually(main()) == [10.0]
