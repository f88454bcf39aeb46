"""Budgets of tenants, tiers, dependencies and accounts: what pods enforce together, also after a loss."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic, time

import pytest
import redis
from msgspec.structs import replace

from fuseboard.agent_api.fallbacks import Alternative, Default
from fuseboard.batching import settlements
from fuseboard.calling.cheaper_source import cheaper_source, has_cheaper_source
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import limit_of
from fuseboard.contract.budgets import MAX_BUDGET, Account, AtSpent, Budget
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Dependency, Limit, Policy, TenantRecord, Tier
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import Algorithm, DrillKind, Mode, Outcome, Period, Reason
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import NotServedError
from fuseboard.testing import FakeAgent
from fuseboard.without_redis import kept_budgets
from tests.agents.servers import PATIENT, POLICY, TUNING, Server, configured, running
from tests.waiting import eventually

ONE_USD = 1_000_000


def budget(amount: int, name: str = "daily", period: Period = Period.DAY, **more: object) -> Budget:
    return Budget(name=name, amount=amount, period=period, **more)  # type: ignore[arg-type]


def policy_of(
    *,
    of_tier: tuple[Budget, ...] = (),
    of_pool: tuple[Budget, ...] = (),
    of_account: tuple[Budget, ...] = (),
    limits: tuple[Limit, ...] = (),
) -> Policy:
    return replace(
        POLICY,
        tiers=(Tier(name="free", budgets=of_tier),),
        dependencies=(Dependency(name="gpt", budgets=of_pool, vendor_limits=limits), Dependency(name="mini")),
        accounts=(Account(name="openai", pools=("gpt", "mini"), budgets=of_account),),
        tuning=PATIENT,
    )


@asynccontextmanager
async def pods(
    redis_url: str,
    policy: Policy,
    number: int = 1,
    tenants: dict[str, TenantRecord] | None = None,
) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                running(
                    redis_url,
                    f"web-{place}",
                    configured(
                        policy, live_servers=number, tenants=tenants or {"acme": TenantRecord(tier="free")}
                    ),
                )
            )
            for place in range(number)
        ]


async def call(
    pod: Server, micro_usd: int, *, pool: str = "gpt", tenant: str = "acme", actual: int | None = None
) -> Permit | Refused:
    """As the guard of a model client calls: the call of a request that has paid for itself."""
    try:
        permit = await pod.admission.admit_call(
            pool, tenant=tenant, costs={"micro_usd": micro_usd}, spend_costs=True
        )
    except Refused as refused:
        return refused
    pod.admission.report(permit, Outcome.OK)
    if actual is not None:
        pod.admission.settle(permit.decision, "micro_usd", actual)
    return permit


async def lose_redis(pod: Server) -> None:
    pod.admission.store.pretend(Drill(id=1, kind=DrillKind.GONE, remaining_ms=60_000), asked=monotonic())
    await eventually(lambda: pod.admission.health.mode is Mode.LOCAL)


async def find_redis(pod: Server) -> None:
    pod.admission.store.pretend(None, asked=monotonic())
    await eventually(lambda: pod.admission.health.mode is Mode.SHARED)


def spent(limits: redis.Redis, key: str) -> int:
    text = limits.get(key)
    return int(text.split()[1]) if text else 0  # type: ignore[union-attr]


def ends_in_ms(period: Period) -> int:
    now_us = int(time() * 1_000_000)
    return (period_around(now_us, period, "UTC")[1] - now_us) // 1000


ACCOUNT_KEY = keys.account_budget("production", "openai", "daily")
OWNERS = {
    "tier": ({"of_tier": (budget(10 * ONE_USD),)}, keys.tenant_budget("production", "acme", "daily")),
    "dependency": (
        {"of_pool": (budget(10 * ONE_USD),)},
        keys.dependency_budget("production", "gpt", "daily"),
    ),
    "account": ({"of_account": (budget(10 * ONE_USD),)}, ACCOUNT_KEY),
}


@pytest.mark.parametrize("owner", OWNERS)
class TestEveryOwner:
    async def test_a_spent_budget_refuses_until_its_period_ends(
        self, limits: redis.Redis, redis_url: str, owner: str
    ):
        fields, key = OWNERS[owner]
        async with pods(redis_url, policy_of(**fields), 2) as both:
            for number in range(10):
                assert isinstance(await call(both[number % 2], ONE_USD), Permit)
            left_ms = ends_in_ms(Period.DAY)
            refused = await call(both[0], ONE_USD)
            assert isinstance(refused, Refused)
            decision = refused.decision
            assert decision.reason is Reason.BUDGET_SPENT
            assert decision.rule == ("openai/budget:daily" if owner == "account" else "budget:daily")
            # A test at midnight sees the next day.
            assert abs(decision.retry_after_ms - left_ms) < 60_000 or left_ms < 60_000
            assert spent(limits, key) == 10 * ONE_USD

    async def test_a_call_is_settled_exactly(self, limits: redis.Redis, redis_url: str, owner: str):
        fields, key = OWNERS[owner]
        async with pods(redis_url, policy_of(**fields)) as (pod,):
            await call(pod, 4 * ONE_USD, actual=1_234_567)
            await call(pod, 4 * ONE_USD, actual=0)
            await eventually(lambda: spent(limits, key) == 1_234_567)

    async def test_without_redis_pods_divide_what_was_left_at_the_last_look(
        self, limits: redis.Redis, redis_url: str, owner: str
    ):
        fields, key = OWNERS[owner]
        policy = replace(policy_of(**fields), tuning=TUNING)
        async with pods(redis_url, policy, 2) as both:
            for pod in both:
                await call(pod, 2 * ONE_USD)
            await lose_redis(both[1])
            passed = [isinstance(await call(both[1], ONE_USD), Permit) for _ in range(8)]
            # The pod saw 4 USD spent: half of the other 6 are its share.
            assert passed == [True] * 3 + [False] * 5
            await find_redis(both[1])
            await eventually(lambda: spent(limits, key) == 7 * ONE_USD)

    @pytest.mark.parametrize("at_100", [AtSpent.WARN, AtSpent.DEGRADE])
    async def test_a_budget_that_does_not_stop_counts_everything(
        self, limits: redis.Redis, redis_url: str, owner: str, at_100: AtSpent
    ):
        fields, key = OWNERS[owner]
        name = next(iter(fields))
        soft = {name: (budget(10 * ONE_USD, at_100=at_100.value),)}
        async with pods(redis_url, policy_of(**soft)) as (pod,):
            permits = [await call(pod, 4 * ONE_USD) for _ in range(4)]
            found = []
            for permit in permits:
                assert isinstance(permit, Permit)
                (status,) = permit.decision.limits
                assert (status.limit, status.at_spent) == (10 * ONE_USD, at_100)
                found.append((status.remaining, status.warning, permit.decision.degraded))
            degrades = at_100 is AtSpent.DEGRADE
            assert found == [
                (6 * ONE_USD, False, False),
                (2 * ONE_USD, True, False),
                (0, True, degrades),
                (0, True, degrades),
            ]
            assert spent(limits, key) == 16 * ONE_USD

    async def test_a_ramp_divides_what_is_left(
        self, limits: redis.Redis, redis_url: str, owner: str, monkeypatch: pytest.MonkeyPatch
    ):
        fields, key = OWNERS[owner]
        async with pods(redis_url, policy_of(**fields)) as (pod,):
            assert isinstance(await call(pod, 6 * ONE_USD), Permit)
            monkeypatch.setattr(StoreHealth, "rounded_shared_part", 0.5)
            assert isinstance(await call(pod, ONE_USD), Permit)
            assert isinstance(await call(pod, ONE_USD), Permit)
            # Pods may spend the other 2 USD themselves.
            assert isinstance(await call(pod, ONE_USD), Refused)
            assert spent(limits, key) == 8 * ONE_USD

    async def test_a_ramp_degrades_no_call(
        self, limits: redis.Redis, redis_url: str, owner: str, monkeypatch: pytest.MonkeyPatch
    ):
        fields, _ = OWNERS[owner]
        soft = {next(iter(fields)): (budget(10 * ONE_USD, at_100=AtSpent.DEGRADE.value),)}
        async with pods(redis_url, policy_of(**soft)) as (pod,):
            monkeypatch.setattr(StoreHealth, "rounded_shared_part", 0.5)
            permit = await call(pod, ONE_USD)
            assert isinstance(permit, Permit)
            (status,) = permit.decision.limits
            assert (status.remaining, status.warning, status.degraded) == (9 * ONE_USD, False, False)

    async def test_a_store_that_lost_its_data_does_not_refill_it(
        self,
        limits: redis.Redis,
        redis_url: str,
        owner: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(kept_budgets, "LOOK_S", 0.02)
        fields, key = OWNERS[owner]
        async with pods(redis_url, policy_of(**fields), 3) as every:
            for pod in every:
                await call(pod, 2 * ONE_USD)
            mark = keys.budget_mark(key)
            await eventually(lambda: limits.hgetall(mark))
            for pod in every:
                kept = pod.admission.redis_fallback.budgets
                await eventually(lambda kept=kept: [one.mark for one in kept._kept.values()] != [""])  # type: ignore[misc]
            # The first pod looked when less was spent: the most that any pod knew counts.
            every[2].admission.redis_fallback.budgets.look_at_all()
            await eventually(
                lambda: any(
                    one.amount == 6 * ONE_USD
                    for one in every[2].admission.redis_fallback.budgets._kept.values()
                )
            )
            limits.flushall()
            caplog.clear()
            await call(every[0], ONE_USD)
            await call(every[2], ONE_USD)
            await eventually(lambda: spent(limits, key) == 8 * ONE_USD)
            await eventually(lambda: "budget.restored" in caplog.text)
            for pod in every:
                pod.admission.redis_fallback.budgets.look_at_all()
            await asyncio.gather(*[call(pod, 1) for pod in every])
            await eventually(lambda: spent(limits, key) == 8 * ONE_USD + 3)
            assert isinstance(await call(every[1], 2 * ONE_USD), Refused)


async def test_an_account_counts_all_of_its_pools(limits: redis.Redis, redis_url: str):
    async with pods(redis_url, policy_of(of_account=(budget(3 * ONE_USD),))) as (pod,):
        assert isinstance(await call(pod, 2 * ONE_USD, pool="gpt"), Permit)
        assert isinstance(await call(pod, 2 * ONE_USD, pool="mini"), Refused)
        assert isinstance(await call(pod, ONE_USD, pool="mini"), Permit)
        # A call that states no money, and one to another dependency, spend nothing of it.
        pod.admission.report(await pod.admission.admit_call("gpt"), Outcome.OK)
        assert isinstance(await call(pod, 5 * ONE_USD, pool="elsewhere"), Permit)
    assert spent(limits, ACCOUNT_KEY) == 3 * ONE_USD


async def test_what_a_refused_call_has_charged_is_given_back(limits: redis.Redis, redis_url: str):
    slot = Limit(name="one", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
    policy = policy_of(of_tier=(budget(10 * ONE_USD),), of_account=(budget(10 * ONE_USD),), limits=(slot,))
    async with pods(redis_url, policy) as (pod,):
        first = await pod.admission.admit_call(
            "gpt", tenant="acme", costs={"micro_usd": ONE_USD}, spend_costs=True
        )
        names = {limit.name for limit in first.decision.limits}
        assert names == {"one", "budget:daily", "openai/budget:daily"}
        for _ in range(3):
            refused = await call(pod, ONE_USD)
            assert isinstance(refused, Refused)
            assert refused.decision.reason is Reason.CONCURRENCY
        pod.admission.report(first, Outcome.OK)
        for key in (OWNERS["tier"][1], ACCOUNT_KEY):
            await eventually(lambda key=key: spent(limits, key) == ONE_USD)  # type: ignore[misc]


async def test_a_spent_account_leaves_the_tenants_budget_as_it_was(limits: redis.Redis, redis_url: str):
    policy = policy_of(of_tier=(budget(10 * ONE_USD),), of_account=(budget(ONE_USD),))
    async with pods(redis_url, policy) as (pod,):
        assert isinstance(await call(pod, ONE_USD), Permit)
        refused = await call(pod, ONE_USD)
        assert isinstance(refused, Refused)
        assert (refused.decision.tenant, refused.decision.dependency) == ("acme", "gpt")
        assert isinstance(refused, Refused)
        await eventually(lambda: spent(limits, OWNERS["tier"][1]) == ONE_USD)


async def test_a_tenant_has_its_own_budget_instead_of_that_of_its_tier(limits: redis.Redis, redis_url: str):
    tenants = {
        "acme": TenantRecord(tier="free"),
        "big": TenantRecord(
            tier="free", budgets=(budget(5 * ONE_USD), budget(2, "hourly", Period.HOUR, measure="tokens"))
        ),
    }
    async with pods(redis_url, policy_of(of_tier=(budget(2 * ONE_USD),)), tenants=tenants) as (pod,):
        assert isinstance(await call(pod, 3 * ONE_USD, tenant="acme"), Refused)
        assert isinstance(await call(pod, 3 * ONE_USD, tenant="big"), Permit)
        costs = {"tokens": 3}
        with pytest.raises(Refused, match="budget:hourly"):
            await pod.admission.admit_call("gpt", tenant="big", costs=costs, spend_costs=True)


async def test_the_budget_of_a_parent_counts_its_children_too(limits: redis.Redis, redis_url: str):
    tenants = {
        "acme": TenantRecord(tier="free", budgets=(budget(3 * ONE_USD, "org"),)),
        "acme-retail": TenantRecord(tier="free", parents=("acme",), budgets=(budget(2 * ONE_USD, "team"),)),
    }
    async with pods(redis_url, policy_of(), tenants=tenants) as (pod,):
        assert isinstance(await call(pod, 2 * ONE_USD, tenant="acme-retail"), Permit)
        assert isinstance(await call(pod, ONE_USD, tenant="acme"), Permit)
        refused = await call(pod, 1, tenant="acme")
        assert isinstance(refused, Refused)
        assert refused.decision.rule == "budget:org"
        refused = await call(pod, 1, tenant="acme-retail")
        assert isinstance(refused, Refused)
        assert refused.decision.rule in ("acme/budget:org", "budget:team")
    assert spent(limits, keys.tenant_budget("production", "acme", "org")) == 3 * ONE_USD
    assert spent(limits, keys.member_budget("production", "acme", "acme-retail", "team")) == 2 * ONE_USD


async def test_twenty_pods_spend_a_tenants_budget_and_no_more(
    limits: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
):
    """Each call reserves its estimate and is settled. Over the budget goes at most one call's error."""
    choose = random.Random(6)
    with caplog.at_level(logging.WARNING, "fuseboard.budgets"):
        async with pods(redis_url, policy_of(of_tier=(budget(900_000),)), 20) as every:
            refused: list[Refused] = []
            for _ in range(4):
                asked = [(every[number % 20], choose.randint(1_000, 9_000)) for number in range(200)]
                ended = await asyncio.gather(
                    *[call(pod, cost, actual=cost + choose.randint(-900, 900)) for pod, cost in asked]
                )
                refused += [one for one in ended if isinstance(one, Refused)]
                for pod in every:
                    pod.admission.settlements.flush()
            await eventually(lambda: not any(pod.admission.settlements._waiting for pod in every))
            total = spent(limits, OWNERS["tier"][1])
    assert refused
    assert {one.decision.reason for one in refused} == {Reason.BUDGET_SPENT}
    assert 900_000 - 9_000 * 20 <= total <= 900_000 + 200 * 900
    warned = [record for record in caplog.records if record.message.startswith("budget.warn")]
    assert 1 <= len(warned) <= 20, "each pod says it once"


@pytest.mark.parametrize("amount", [1_000_000_000, 50_000_000_000, MAX_BUDGET - 1, MAX_BUDGET])
async def test_large_budgets_are_exact_to_the_last_unit(limits: redis.Redis, redis_url: str, amount: int):
    async with pods(redis_url, policy_of(of_account=(budget(amount),))) as (pod,):
        began, _ = period_around(int(time() * 1_000_000), Period.DAY, "UTC")
        limits.set(ACCOUNT_KEY, f"{began} {amount - 3}")
        first = await call(pod, 2)
        assert isinstance(first, Permit)
        assert first.decision.limits[0].remaining == 1
        assert limits.get(ACCOUNT_KEY) == f"{began} {amount - 1}".encode()
        assert isinstance(await call(pod, 2), Refused)
        assert isinstance(await call(pod, 1), Permit)
        assert limits.get(ACCOUNT_KEY) == f"{began} {amount}".encode()
        pod.admission.settle(first.decision, "micro_usd", 1)
        await eventually(lambda: limits.get(ACCOUNT_KEY) == f"{began} {amount - 1}".encode())


async def test_a_budget_that_is_raised_goes_on_from_what_is_spent(limits: redis.Redis, redis_url: str):
    async with pods(redis_url, policy_of(of_account=(budget(2 * ONE_USD),))) as (pod,):
        assert isinstance(await call(pod, 2 * ONE_USD), Permit)
        assert isinstance(await call(pod, ONE_USD), Refused)
    async with pods(redis_url, policy_of(of_account=(budget(3 * ONE_USD),))) as (pod,):
        assert isinstance(await call(pod, ONE_USD), Permit)
        assert isinstance(await call(pod, ONE_USD), Refused)


@pytest.mark.parametrize("sent_after_s", [settlements.WAIT_S, 0.5])
async def test_a_pod_also_knows_what_was_spent_after_its_last_question(
    limits: redis.Redis, redis_url: str, sent_after_s: float, monkeypatch: pytest.MonkeyPatch
):
    """A correction may wait longer than a look, as after an outage."""
    monkeypatch.setattr(settlements, "WAIT_S", sent_after_s)
    monkeypatch.setattr(kept_budgets, "LOOK_S", 0.02)
    async with pods(redis_url, policy_of(of_account=(budget(10 * ONE_USD),))) as (pod,):
        kept = pod.admission.redis_fallback.budgets

        def known() -> list[int]:
            return [one.amount for one in kept._kept.values()]

        pod.admission.charging.charge("gpt", (("micro_usd", ONE_USD),), "", batch=True)
        await eventually(lambda: known() == [ONE_USD])
        permit = await call(pod, ONE_USD)
        assert isinstance(permit, Permit)
        await eventually(lambda: known() == [2 * ONE_USD])
        pod.admission.settle(permit.decision, "micro_usd", 5 * ONE_USD)
        await eventually(lambda: known() == [6 * ONE_USD])


async def test_a_look_that_failed_is_not_repeated_for_a_budget_that_was_dropped(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_budgets, "MAX_KEPT", 1)
    both = dict.fromkeys(("acme", "other"), TenantRecord(tier="free"))
    async with pods(redis_url, policy_of(of_tier=(budget(ONE_USD),)), tenants=both) as (pod,):
        kept = pod.admission.redis_fallback.budgets
        await call(pod, 1)
        looked_at = list(kept._kept.values())
        await call(pod, 1, tenant="other")
        kept._answered(looked_at, NotServedError())
        kept._look()
        await eventually(
            lambda: limits.exists(keys.budget_mark(keys.tenant_budget("production", "other", "daily")))
        )


def test_equal_budgets_are_one_limit():
    assert limit_of(budget(5)) is limit_of(budget(5))


async def test_a_call_that_degrades_is_refused_if_its_caller_has_a_cheaper_source(
    limits: redis.Redis, redis_url: str
):
    soft = budget(2 * ONE_USD, at_100=AtSpent.DEGRADE.value)
    policy = policy_of(of_tier=(budget(10 * ONE_USD),), of_account=(soft,), of_pool=(budget(10 * ONE_USD),))
    async with pods(redis_url, policy) as (pod,):
        with cheaper_source(exists=True):
            for _ in range(2):
                assert isinstance(await call(pod, ONE_USD), Permit)
            refused = await call(pod, ONE_USD)
        assert isinstance(refused, Refused)
        assert refused.decision.reason is Reason.BUDGET_SPENT
        assert refused.decision.rule == "openai/budget:daily"
        for owner in OWNERS.values():
            await eventually(lambda key=owner[1]: spent(limits, key) == 2 * ONE_USD)  # type: ignore[misc]
        assert isinstance(await call(pod, ONE_USD), Permit), "without a cheaper source, it passes"


@pytest.mark.parametrize(
    ("step", "cheaper"), [(Alternative("mini", call=lambda: 1), True), (Default(1), False)]
)
async def test_a_chain_has_a_cheaper_source_while_it_asks_the_first_one(
    step: Alternative | Default, cheaper: bool
):
    async def ask() -> bool:
        return has_cheaper_source()

    answer = await FakeAgent().fallback("gpt", [step]).run(ask)
    assert answer.value is cheaper
    assert has_cheaper_source() is False


async def test_the_alternative_of_a_chain_has_none():
    async def fail() -> bool:
        raise TimeoutError

    answer = await FakeAgent().fallback("gpt", [Alternative("mini", call=has_cheaper_source)]).run(fail)
    assert (answer.value, answer.source) == (False, "mini")


async def test_each_of_many_budgets_gets_its_turn_although_all_are_spent_all_the_time(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_budgets, "LOOK_S", 0.05)
    monkeypatch.setattr(kept_budgets, "STEP_S", 0.02)
    monkeypatch.setattr(kept_budgets, "MAX_AT_ONCE", 3)
    names = [f"tenant-{number}" for number in range(20)]
    tenants = dict.fromkeys(names, TenantRecord(tier="free"))
    async with pods(redis_url, policy_of(of_tier=(budget(9 * ONE_USD),)), tenants=tenants) as (pod,):
        kept = pod.admission.redis_fallback.budgets
        for name in names:
            await call(pod, 1, tenant=name)

        async def all_known() -> bool:
            # The first ones are spent again and again, and so are always due.
            for name in names[:6]:
                await call(pod, 1, tenant=name)
            return len(kept._kept) == 20 and all(one.mark for one in kept._kept.values())

        await eventually(all_known)
        # After a loss, each is put back, too.
        await eventually(lambda: kept._timer is None and not kept._round)
        amounts = {key: one.amount for key, one in kept._kept.items()}
        limits.flushall()
        await call(pod, 1, tenant=names[0])

        def all_back() -> bool:
            return all(
                int((limits.get(key) or b"0 0").split()[1]) >= amount for key, amount in amounts.items()
            )

        await eventually(all_back)
