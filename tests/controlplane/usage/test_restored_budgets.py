"""A Redis that lost its data, and whose pods have all restarted, gets the budgets back from the worker."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis
from asgiref.sync import sync_to_async

from controlplane.editing import edits
from controlplane.ledger.models import UsageDay, UsageHour, Whose
from controlplane.ledger.rows import AMOUNTS
from controlplane.policies.document import environment_of, policy_of
from controlplane.policies.models import Tenant
from controlplane.repair.budgets import forget_budgets, restore_all, restore_budgets
from controlplane.spending.models import Account
from controlplane.usage.clear_counter import clear_counter
from controlplane.usage.models import BudgetCorrection, KnownBudget
from fuseboard.contract import budgets, keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Dependency
from fuseboard.contract.words import Outcome, Period
from fuseboard.errors import Refused
from fuseboard.without_redis import kept_budgets
from tests.agents.servers import POLICY, Server, configured, running
from tests.waiting import eventually

WHY: dict[str, Any] = {"environment": "production", "reason": "for a test"}
KEY = keys.account_budget("production", "main", "main-month")
OF_TIER = keys.tenant_budget("production", "acme", "pro-month")


@pytest.fixture(autouse=True)
def main_month(production: str, ada: Any, settings: Any, redis_url: str) -> None:
    settings.REDIS_URL = redis_url
    amount: dict[str, Any] = {"amount": 1_000_000, "period": "month", "expected_version": 0}
    edits.set_account(**WHY, actor=ada, account="main", pools=["openai"], expected_version=0)
    edits.set_budget(**WHY, actor=ada, budget="main-month", account="main", **amount)
    edits.set_budget(**WHY, actor=ada, budget="pro-month", tier="pro", **amount)


def began() -> int:
    return period_around(int(datetime.now(UTC).timestamp() * 1_000_000), Period.MONTH, "UTC")[0]


def spend(limits: redis.Redis, amount: int, key: str = KEY) -> None:
    """As pods spend, and look at what is spent."""
    before = spent(limits, key)
    limits.set(key, f"{began()} {before + amount}")
    mark = keys.budget_mark(key)
    if not limits.hexists(mark, str(began())):
        now = limits.time()
        limits.hset(mark, str(began()), f"{now[0] * 1_000_000 + now[1]} 0")


def spent(limits: redis.Redis, key: str = KEY) -> int:
    text = limits.get(key)
    return int(text.split()[1]) if text else 0  # type: ignore[union-attr]


def enter(micro_usd: int, *, dependency: str = "openai", tenant: str = "acme") -> None:
    """As gateways write what pods used."""
    now = datetime.now(UTC)
    numbers = {**dict.fromkeys(AMOUNTS, 0), "micro_usd": micro_usd}
    about = {"environment": "production", "model": f"m{UsageDay.objects.count()}", "dependency": dependency}
    hour = now.replace(minute=0, second=0, microsecond=0)
    UsageHour.objects.create(at=hour, whose=Whose.SERVICE, name="shop", **about, **numbers)
    UsageHour.objects.create(at=hour, whose=Whose.TENANT, name=tenant, **about, **numbers)
    UsageDay.objects.create(day=now.date(), tenant=tenant, **about, **numbers)


def look() -> int:
    return restore_budgets("production", datetime.now(UTC))


def pods_have_reported(limits: redis.Redis, key: str = KEY) -> None:
    """A minute later, pods have reported what they decided without Redis."""
    field = str(began())
    mark, restored = limits.hget(keys.budget_mark(key), field).split()  # type: ignore[union-attr]
    limits.hset(keys.budget_mark(key), field, f"{int(mark) - 61_000_000} {int(restored)}")
    KnownBudget.objects.filter(key=key).update(mark=str(int(mark) - 61_000_000))


def test_after_a_loss_a_budget_goes_on_from_what_the_worker_saw(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    enter(0)
    spend(limits, 70_000, OF_TIER)
    assert look() == 0
    limits.flushall()
    assert look() == 2
    assert (spent(limits), spent(limits, OF_TIER)) == (300_000, 70_000)
    assert look() == 0
    spend(limits, 5)
    assert look() == 0
    assert spent(limits) == 300_005
    # The mark says how much is back: a pod that knows more adds the difference.
    stored = limits.hget(keys.budget_mark(KEY), str(began()))
    assert stored is not None
    assert stored.split()[1] == b"300000"  # type: ignore[union-attr]


def test_a_tenant_whose_calls_are_all_of_those_below_it_gets_its_budget_back(
    limits: redis.Redis, ada: Any
) -> None:
    edits.create_tenant(**WHY, actor=ada, tenant="acme/shop", tier="pro", parent="acme")
    spend(limits, 70_000, OF_TIER)
    enter(70_000, tenant="acme/shop")
    look()
    limits.flushall()
    assert look() == 1
    assert spent(limits, OF_TIER) == 70_000


def test_an_account_that_is_removed_during_the_look_stops_no_other_budget(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    spend(limits, 70_000, OF_TIER)
    enter(0)
    Account.objects.all().delete()
    assert look() == 0
    assert KnownBudget.objects.count() == 2


def test_what_was_spent_since_the_loss_counts_too_and_nothing_counts_twice(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    enter(300_000)
    look()
    limits.flushall()
    spend(limits, 20_000)
    enter(20_000)
    assert look() == 1
    assert spent(limits) == 320_000
    assert look() == 0
    limits.flushall()
    assert look() == 1
    assert spent(limits) == 320_000


def test_what_pods_used_while_redis_was_down_comes_from_the_ledger(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    enter(300_000)
    enter(9_000, dependency="another")
    look()
    # Pods go on without Redis, and restart: only the ledger knows what they used.
    enter(150_000)
    limits.flushall()
    spend(limits, 40_000)
    enter(40_000)
    assert look() == 1
    assert spent(limits) == 340_000
    pods_have_reported(limits)
    assert look() == 1
    assert spent(limits) == 490_000
    assert look() == 0
    assert not KnownBudget.objects.get(key=KEY).ledger_waits


def test_what_pods_report_after_a_loss_does_not_count_a_second_time_from_the_ledger(
    limits: redis.Redis,
) -> None:
    spend(limits, 300_000)
    enter(300_000)
    look()
    # Pods decide without Redis, and the ledger has it before they report it to the Redis that is back.
    enter(150_000)
    limits.flushall()
    assert look() == 1
    assert spent(limits) == 300_000
    spend(limits, 150_000)
    pods_have_reported(limits)
    assert look() == 0
    assert spent(limits) == 450_000
    assert look() == 0


def test_a_second_loss_within_the_minute_loses_nothing(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    enter(300_000)
    look()
    enter(150_000)
    limits.flushall()
    look()
    limits.flushall()
    spend(limits, 7)
    enter(7)
    assert look() == 1
    assert spent(limits) == 300_007
    pods_have_reported(limits)
    assert look() == 1
    assert spent(limits) == 450_007


def test_what_was_spent_before_the_budget_was_made_or_cleared_stays_out(
    limits: redis.Redis, ada: Any
) -> None:
    enter(600_000)
    spend(limits, 10_000)
    enter(10_000)
    look()
    limits.flushall()
    assert look() == 1
    assert spent(limits) == 10_000
    spend(limits, 90_000)
    enter(90_000)
    look()
    clear_counter(**WHY, actor=ada, budget="main-month")
    assert look() == 0
    assert spent(limits) == 0
    spend(limits, 5_000)
    enter(5_000)
    look()
    limits.flushall()
    assert look() == 1
    assert spent(limits) == 5_000


def test_a_cleared_counter_that_is_spent_again_at_once_is_not_taken_for_one_that_goes_on(
    limits: redis.Redis, ada: Any
) -> None:
    spend(limits, 300_000)
    enter(300_000)
    look()
    clear_counter(**WHY, actor=ada, budget="main-month")
    spend(limits, 200_000)
    assert look() == 0
    enter(200_000)
    limits.flushall()
    assert look() == 1
    assert spent(limits) == 200_000
    pods_have_reported(limits)
    assert look() == 0
    assert spent(limits) == 200_000


def test_a_correction_that_waits_is_not_added_to_a_counter_that_is_cleared(
    limits: redis.Redis, ada: Any
) -> None:
    spend(limits, 300_000)
    period = period_around(began(), Period.MONTH, "UTC")
    waits = BudgetCorrection(
        environment="production", key=KEY, began=period[0], ends=period[1], amount=50_000
    )
    waits.save()
    clear_counter(**WHY, actor=ada, budget="main-month")
    restore_all(["production"], datetime.now(UTC))
    assert spent(limits) == 0


def test_a_counter_that_is_cleared_just_before_a_loss_stays_cleared(limits: redis.Redis, ada: Any) -> None:
    spend(limits, 300_000)
    enter(300_000)
    look()
    with limits.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(keys.budget_channel("production"))
        assert channel.get_message(timeout=20) is None
        clear_counter(**WHY, actor=ada, budget="main-month")
        message = channel.get_message(timeout=20)
    # Pods that have not spent it lately forget what they know.
    assert message is not None
    assert message["data"] == KEY.encode()
    limits.flushall()
    assert look() == 0
    spend(limits, 7)
    pods_have_reported(limits)
    assert look() == 0
    assert spent(limits) == 7


@pytest.mark.parametrize("counted", ["99999999999999999999", "9" * 5_000, "-1", "1 2", "\u0661", "\udcff"])
def test_a_number_that_postgres_cannot_store_stops_no_other_budget(limits: redis.Redis, counted: str) -> None:
    spend(limits, 70_000, OF_TIER)
    enter(0)
    limits.set(KEY, f"{began()} {counted}".encode(errors="surrogateescape"))
    limits.hset(keys.budget_mark(KEY), str(began()), f"1 {counted}".encode(errors="surrogateescape"))
    assert look() == 0
    assert [row.key for row in KnownBudget.objects.all()] == [OF_TIER]


def test_usage_that_pods_have_invented_stops_no_budget_of_others(limits: redis.Redis) -> None:
    for _ in range(3):
        enter(2**62, tenant="acme")
    spend(limits, 1)
    spend(limits, 70_000, OF_TIER)
    assert look() == 0
    limits.flushall()
    assert look() == 2
    pods_have_reported(limits)
    look()
    assert spent(limits, OF_TIER) == 70_000
    assert spent(limits) == 1


def test_tenants_without_a_budget_do_not_push_out_those_that_have_one(
    limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.repair.budgets.MAX_TENANTS", 1)
    spend(limits, 70_000, OF_TIER)
    enter(5)
    enter(9_000_000, tenant="invented")
    look()
    assert KnownBudget.objects.filter(key=OF_TIER).exists()


def test_of_many_own_budgets_those_of_the_tenants_that_spend_most_are_looked_at(
    limits: redis.Redis, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.repair.budgets.MAX_TENANTS", 1)
    amount: dict[str, Any] = {"amount": 1_000_000, "period": "month", "expected_version": 0}
    edits.create_tenant(**WHY, actor=ada, tenant="globex", tier="pro")
    for tenant in ("acme", "globex"):
        edits.set_budget(**WHY, actor=ada, budget=f"{tenant}-month", tenant=tenant, **amount)
        spend(limits, 5, keys.tenant_budget("production", tenant, f"{tenant}-month"))
    enter(1, tenant="acme")
    enter(2, tenant="globex")
    look()
    [row] = KnownBudget.objects.all()
    assert row.key.endswith("globex-month")


def test_the_ledger_is_asked_once_for_all_tenants(
    limits: redis.Redis, django_assert_max_num_queries: Any
) -> None:
    tier = Tenant.objects.get(key="acme").tier
    Tenant.objects.bulk_create(
        Tenant(environment_id="production", key=f"t{number}", tier=tier, changed_revision=1)
        for number in range(30)
    )
    for number in range(30):
        spend(limits, 5, keys.tenant_budget("production", f"t{number}", "pro-month"))
        enter(1, tenant=f"t{number}")
    with django_assert_max_num_queries(25):
        look()
    assert KnownBudget.objects.count() == 30


def test_a_store_that_lost_nothing_is_not_changed(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    look()
    # The ledger knows more: a call of a pod that enforces no budget.
    enter(900_000)
    assert look() == 0
    assert spent(limits) == 300_000


def test_a_budget_of_an_earlier_period_and_a_damaged_counter_stay_as_they_are(limits: redis.Redis) -> None:
    spend(limits, 300_000)
    look()
    KnownBudget.objects.update(began=1)
    limits.flushall()
    assert look() == 0
    assert not limits.exists(KEY)
    spend(limits, 300_000)
    look()
    limits.delete(KEY)
    limits.sadd(KEY, "damaged")
    assert look() == 0


def test_periods_that_are_over_are_forgotten(limits: redis.Redis) -> None:
    spend(limits, 1)
    look()
    forget_budgets(datetime.now(UTC) + timedelta(days=31))
    assert KnownBudget.objects.exists()
    forget_budgets(datetime.now(UTC) + timedelta(days=33))
    assert not KnownBudget.objects.exists()


async def test_new_pods_go_on_from_what_earlier_pods_had_spent(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pod has restarted after Redis lost its data, so that none knows what was spent."""
    monkeypatch.setattr(kept_budgets, "LOOK_S", 0.05)
    policy = msgspec.structs.replace(
        POLICY, dependencies=(Dependency(name="openai"),), accounts=(await published_account(),)
    )

    async def call(pod: Server, micro_usd: int) -> bool:
        try:
            permit = await pod.admission.admit_call("openai", costs={"micro_usd": micro_usd})
        except Refused:
            return False
        pod.admission.report(permit, Outcome.OK)
        return True

    async with running(redis_url, "web-1", configured(policy)) as pod:
        assert await call(pod, 700_000)
        await eventually(lambda: limits.hgetall(keys.budget_mark(KEY)))
    assert await sync_to_async(look)() == 0
    limits.flushall()
    async with running(redis_url, "web-2", configured(policy)) as pod:
        # Until the worker looks, the budget counts from 0.
        assert await call(pod, 200_000)
        assert await sync_to_async(look)() == 1
        assert spent(limits) == 900_000
        assert not await call(pod, 200_000)
        assert await call(pod, 100_000)
        await eventually(lambda: spent(limits) == 1_000_000)


@sync_to_async
def published_account() -> budgets.Account:
    [account] = policy_of(environment_of("production")).accounts
    return account
