"""Corrections of a charge: whatever a caller passes, it gets back what its own calls spent, and no more."""

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import redis
from msgspec.structs import replace

import fuseboard.testing
from fuseboard.admission.admission import Admission
from fuseboard.agent_api.arguments import MAX_ACTUAL, check_actual
from fuseboard.contract.policy import Limit, Policy, TenantRecord, Tier
from fuseboard.contract.words import FailurePolicy, Mode
from fuseboard.decision import Decision
from fuseboard.errors import Misconfigured
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.servers import PATIENT, POLICY, Server, configured, running

TOKENS = {"measure": "tokens", "failure_policy": FailurePolicy.LOCAL_SHARE}
KINDS = {
    "window": window(100, 3600, "tokens", **TOKENS),
    "bucket": bucket(100, seconds=3600, name="tokens", **TOKENS),
    "daily": daily(100, **TOKENS),
}
WITH_REDIS = [(kind, True) for kind in KINDS] + [(kind, False) for kind in KINDS]


def policy(*quotas: Limit) -> Policy:
    return replace(POLICY, tiers=(Tier(name="free", quotas=quotas),), tuning=PATIENT, dependencies=())


@asynccontextmanager
async def serving(redis_url: str, *quotas: Limit, connected: bool = True) -> AsyncIterator[Server]:
    configuration = configured(policy(*quotas), tenants={"acme": TenantRecord(tier="free")})
    url = redis_url if connected else "redis://127.0.0.1:1"
    async with running(url, configuration=configuration, connected=connected) as server:
        yield server


async def charged(server: Server, tokens: int = 60) -> Decision:
    decision = await server.admission.admit_request("acme", costs={"tokens": tokens})
    assert decision.allowed
    return decision


async def left(server: Server) -> int:
    """The tokens that can be spent now, in Redis or in this pod alone."""
    admission = server.admission
    admission.settlements.flush()  # answers come in the order of questions
    for tokens in range(100, 0, -1):
        probe = await admission.admit_request("acme", costs={"tokens": tokens}, wait_s=0)
        assert (probe.mode is Mode.LOCAL) is not admission.health.usable
        if probe.allowed:
            admission.give_back(probe)
            admission.settlements.flush()
            return tokens
    return 0


def sent(decision: Decision) -> Decision:
    """As another process gets it."""
    copied: Decision = pickle.loads(pickle.dumps(decision))  # noqa: S301
    return copied


#: What is done with the decision of a call of 60 tokens, and what it gets back.
CHANGES: dict[str, tuple[Callable[[Admission, Decision], object], int]] = {
    "settled": (lambda agent, one: agent.settle(one, "tokens", 10), 50),
    "settled twice": (lambda agent, one: [agent.settle(one, "tokens", 10) for _ in range(2)], 50),
    "settled, then higher": (lambda agent, one: [agent.settle(one, "tokens", n) for n in (10, 30)], 50),
    "given back": (lambda agent, one: agent.give_back(one), 60),
    "given back twice": (lambda agent, one: [agent.give_back(one) for _ in range(2)], 60),
    "given back, settled": (lambda agent, one: [agent.give_back(one), agent.settle(one, "tokens", 0)], 60),
    "settled, given back": (lambda agent, one: [agent.settle(one, "tokens", 9), agent.give_back(one)], 60),
    "finished": (lambda agent, one: [agent.finish(one) for _ in range(2)], 0),
    "finished, settled": (lambda agent, one: [agent.finish(one), agent.settle(one, "tokens", 10)], 50),
    "another measure": (lambda agent, one: agent.settle(one, "micro_usd", 0), 0),
    "a copy": (lambda agent, one: [agent.settle(each, "tokens", 10) for each in (one, copy.copy(one))], 50),
    "pickled": (lambda agent, one: agent.settle(sent(one), "tokens", 10), 0),
    "pickled, given back": (lambda agent, one: agent.give_back(sent(one)), 0),
}


class TestDecisions:
    @pytest.mark.parametrize(("kind", "connected"), WITH_REDIS)
    async def test_each_gets_back_what_it_spent_once(
        self, limits: redis.Redis, redis_url: str, kind: str, connected: bool
    ):
        for change, back in CHANGES.values():
            limits.flushall()
            async with serving(redis_url, KINDS[kind], connected=connected) as server:
                one = await charged(server)
                await charged(server, 40)  # of another call: it stays
                change(server.admission, one)
                assert await left(server) == back

    async def test_calls_that_came_together_are_settled_apart(self, limits: redis.Redis, redis_url: str):
        async with serving(redis_url, KINDS["bucket"]) as server:
            one, two = await asyncio.gather(charged(server, 50), charged(server, 50))
            for _ in range(3):
                server.admission.settle(one, "tokens", 10)
            assert await left(server) == 40
            server.admission.settle(two, "tokens", 20)
            assert await left(server) == 70

    async def test_plain_calls_that_came_together_get_back_what_they_spent_together(
        self, limits: redis.Redis, redis_url: str
    ):
        calls = bucket(100, seconds=3600, name="calls")
        async with serving(redis_url, calls) as server:
            decisions = await asyncio.gather(*[server.admission.admit_request("acme") for _ in range(10)])
            for decision in decisions * 3:
                server.admission.give_back(decision)
                server.admission.settle(decision, "calls", 0)
            server.admission.settlements.flush()
            assert (await server.admission.admit_request("acme")).limits[0].remaining == 99
            # A charge of another caller stays.
            other = await server.admission.admit_request("acme", 5)
            for decision in decisions:
                server.admission.give_back(decision)
            server.admission.settlements.flush()
            assert (await server.admission.admit_request("acme")).limits[0].remaining == 93
            assert other.allowed

    async def test_another_agent_corrects_nothing(self, limits: redis.Redis, redis_url: str):
        async with (
            serving(redis_url, KINDS["bucket"]) as server,
            serving(redis_url, KINDS["bucket"]) as other,
        ):
            one = await charged(server)
            other.admission.settle(one, "tokens", 10)
            other.admission.give_back(one)
            other.admission.settlements.flush()
            assert await left(server) == 40

    async def test_a_refused_decision_gets_nothing_back(self, limits: redis.Redis, redis_url: str):
        async with serving(redis_url, KINDS["bucket"]) as server:
            await charged(server, 90)
            refused = await server.admission.admit_request("acme", costs={"tokens": 60})
            assert not refused.allowed
            server.admission.settle(refused, "tokens", 0)
            server.admission.give_back(refused)
            assert await left(server) == 10

    async def test_a_shadow_limit_gives_back_only_what_it_counted(self, limits: redis.Redis, redis_url: str):
        shadow = replace(KINDS["window"], shadow=True)
        async with serving(redis_url, shadow) as server:
            await charged(server, 90)
            over = await charged(server, 60)  # the limit had no room, and did not count it
            server.admission.settle(over, "tokens", 0)
            server.admission.give_back(await charged(server, 60))
            server.admission.settlements.flush()
            assert (await charged(server, 1)).limits[0].remaining == 9

    @pytest.mark.parametrize("kind", ["window", "bucket"])
    async def test_a_call_that_left_the_window_gets_nothing_back(
        self, limits: redis.Redis, redis_url: str, kind: str
    ):
        minute = replace(KINDS[kind], window_ms=60_000)
        async with serving(redis_url, minute) as server:
            one = await charged(server, 100)
            late = replace(one, charges=(replace(one.charges[0], at_us=one.charges[0].at_us - 90_000_000),))
            server.admission.settle(late, "tokens", 0)
            server.admission.settlements.flush()
            assert not (await server.admission.admit_request("acme", costs={"tokens": 100}, wait_s=0)).allowed

    @pytest.mark.parametrize("kind", KINDS)
    async def test_a_call_may_cost_far_more_than_the_limit(
        self, limits: redis.Redis, redis_url: str, kind: str
    ):
        lenient = replace(KINDS[kind], failure_policy=FailurePolicy.FAIL_OPEN)
        async with serving(redis_url, lenient) as server:
            decisions = [await charged(server, 10) for _ in range(5)]
            for decision in decisions:
                server.admission.settle(decision, "tokens", MAX_ACTUAL)
            assert await left(server) == 0


class TestArguments:
    WRONG = (
        -1,
        -(10**30),
        1.0,
        0.5,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
        "5",
        MAX_ACTUAL + 1,
        10**30,
    )

    @pytest.mark.parametrize("actual", WRONG)
    def test_a_wrong_amount_is_an_error_that_says_what_is_right(self, actual: object):
        with pytest.raises(Misconfigured, match="a whole number of at least 0"):
            check_actual("tokens", actual)

    @pytest.mark.parametrize("actual", WRONG)
    async def test_the_fake_checks_amounts_of_permits_too(self, actual: object):
        agent = fuseboard.testing.FakeAgent()
        permit = await agent.admit_call("llm", costs={"tokens": 5})
        with pytest.raises(Misconfigured):
            permit.settle("tokens", actual)  # type: ignore[arg-type]
        permit.settle("tokens", 3)


async def test_without_redis_short_calls_pass_although_their_estimates_are_long(redis_url: str):
    """The estimate of each is 4,000 tokens, the cost 300: 60 calls use 18,000 of 30,000."""
    limit = bucket(30_000, seconds=60, name="tokens", **TOKENS)
    async with serving(redis_url, limit, connected=False) as server:
        passed = 0
        for _ in range(60):
            decision = await server.admission.admit_request("acme", costs={"tokens": 4_000})
            passed += decision.allowed
            server.admission.settle(decision, "tokens", 300)
        assert passed == 60
        assert server.admission.redis_fallback.limits.offline.unreported == 18_000


async def test_with_redis_the_refund_of_a_pod_ends_its_refusal(limits: redis.Redis, redis_url: str):
    limit = bucket(30_000, seconds=60, name="tokens", **TOKENS)
    async with serving(redis_url, limit) as server:
        passed = 0
        for _ in range(60):
            decision = await server.admission.admit_request("acme", costs={"tokens": 4_000}, wait_s=0)
            passed += decision.allowed
            server.admission.settle(decision, "tokens", 300)
            server.admission.settlements.flush()
        assert passed == 60


SLOTS = slots(10, seconds=60)


@pytest.mark.parametrize("connected", [True, False])
async def test_a_call_occupies_and_frees_as_many_slots_as_it_costs(
    limits: redis.Redis, redis_url: str, connected: bool
):
    quota = replace(SLOTS, failure_policy=FailurePolicy.LOCAL_SHARE)
    async with serving(redis_url, quota, connected=connected) as server:
        admission = server.admission

        async def admit(cost: int) -> Decision:
            return await admission.admit_request("acme", cost, wait_s=0)

        first, second = await admit(4), await admit(5)
        assert first.allowed and second.allowed  # noqa: PT018 - one state
        assert not (await admit(2)).allowed
        admission.finish(first)
        admission.settlements.flush()
        assert (await admit(5)).allowed
        assert not (await admit(1)).allowed
        admission.give_back(second)
        admission.settlements.flush()
        assert (await admit(5)).allowed
        assert not (await admit(1)).allowed
