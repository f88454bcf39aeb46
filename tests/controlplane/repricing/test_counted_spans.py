"""A budget gets the difference of the calls that it has counted: those of its pools and tenants at that time.

It is the 20th, 12:30. Each hour of a day has a call of each tenant, for one micro-USD.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pgtrigger
import pytest
from django.utils import timezone

from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.ledger.models import UsageDay, UsageHour, Whose
from controlplane.ledger.rows import AMOUNTS
from controlplane.policies.document import environment_of
from controlplane.policies.models import Revision
from controlplane.repricing.budget_changes import changed_budgets
from controlplane.repricing.ledger_costs import Costs, Window
from controlplane.spending.models import Account, Budget
from tests.controlplane.repricing.books import MILLION, MODEL, POOL, WHY, revisions_are_older, set_up

#: In the last month, so that no test is about the present time.
DAY = (timezone.now().replace(day=1) - timedelta(days=1)).date().replace(day=20)
NOW = datetime(DAY.year, DAY.month, DAY.day, 12, 30, tzinfo=UTC)
OTHER = "payments-api"
MAIN, ACME, SHOP = "main-budget", "pro-budget of acme", "pro-budget of acme/shop"


@pytest.fixture(autouse=True)
def used(production: str) -> None:
    """Two pools are called by two tenants, in each hour of this day and the day before."""
    set_up(period="day")
    edits.create_tenant(tenant="globex", tier="free", **WHY)
    edits.create_dependency(dependency=OTHER, kind="llm", **WHY)
    revisions_are_older()
    amounts = dict.fromkeys(AMOUNTS, 0) | {"calls": 1, "fresh": MILLION}
    what: dict[str, Any] = {"environment": "production", "model": MODEL, **amounts}
    whole = what | {"fresh": 24 * MILLION}
    callers = [(Whose.TENANT, "acme"), (Whose.TENANT, "acme/shop"), (Whose.SERVICE, "shop")]
    for day, pool in product((DAY - timedelta(days=1), DAY), (POOL, OTHER)):
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        UsageDay.objects.bulk_create(
            UsageDay(day=day, tenant=tenant, dependency=pool, **whole) for tenant in ("acme", "acme/shop")
        )
        UsageHour.objects.bulk_create(
            UsageHour(whose=whose, name=name, at=midnight + timedelta(hours=hour), dependency=pool, **what)
            for (whose, name), hour in product(callers, range(24))
        )


def at(time: str, edit: Callable[[], Any], *, day: int = 20) -> None:
    """Run it as if it was this time."""
    known = list(Revision.objects.values_list("pk", flat=True))
    edit()
    hour, minute = map(int, time.split(":"))
    with pgtrigger.ignore("policies.Revision:revision_stays"):
        changed = Revision.objects.exclude(pk__in=known)
        assert changed.update(at=NOW.replace(day=day, hour=hour, minute=minute))


def added() -> dict[str, int]:
    """Budget, and tenant -> what it gets by a price of 1 micro-USD for each million tokens."""
    costs = Costs(
        environment="production",
        models=[MODEL],
        window=Window(DAY - timedelta(days=1), DAY),
        input=1,
        cached=1,
        written=1,
        output=1,
    )
    return {
        one.counter.row.name + (f" of {one.counter.tenant}" if one.counter.tenant else ""): one.added
        for one in changed_budgets(costs, NOW)
    }


def edit(kind: str, name: str, **fields: Any) -> Callable[[], Any]:
    """By an import, whose audit does not name it."""
    plan = {"tenant": "tenants", "account": "accounts"}[kind]
    return lambda: apply_plan(
        plan=plan_from_document({plan: {name: fields}}), prune=False, expected_revision=None, **WHY
    )


def account(*pools: str) -> Callable[[], Any]:
    return lambda: edits.set_account(
        account="main",
        pools=list(pools),
        hosts=[],
        expected_version=Account.objects.get(name="main").version,
        **WHY,
    )


def test_without_a_change_each_counter_has_all_calls_of_its_period() -> None:
    # Each of 24 hours has a call to each of two pools, of each of two tenants.
    assert added() == {MAIN: 24, ACME: 96, SHOP: 48}


def test_a_pool_that_came_to_an_account_brings_no_calls_of_before() -> None:
    at("06:30", account(POOL, OTHER))
    assert added()[MAIN] == 24 + 17


def test_a_pool_that_left_an_account_has_left_its_calls_there() -> None:
    at("06:30", account(OTHER))
    # The hour in which it left is in neither.
    assert added()[MAIN] == 6 + 17


def test_a_pool_that_came_back_lacks_the_hours_between() -> None:
    at("02:00", account())
    at("06:30", account(POOL))
    assert added()[MAIN] == 2 + 17


def test_an_imported_account_is_read_as_well() -> None:
    at("06:30", edit("account", "main", pools=[POOL, OTHER]))
    assert added()[MAIN] == 24 + 17


def test_a_tenant_that_came_to_a_tier_brings_no_calls_of_before() -> None:
    at("02:10", edit("tenant", "acme/shop", tier="free", parent="acme"))
    assert SHOP not in added(), "it has no budget there"
    at("06:30", edit("tenant", "acme/shop", tier="pro", parent="acme"))
    # It has its counter of before again. Its parent counts its calls in each tier.
    assert added() == {MAIN: 24, ACME: 96, SHOP: 2 * (2 + 17)}


def test_a_tenant_that_left_its_parent_has_left_its_calls_there() -> None:
    at("06:30", edit("tenant", "acme/shop", tier="pro", parent=""))
    # Its own counter is another one since, beside its new topmost tenant.
    assert added() == {MAIN: 24, ACME: 48 + 2 * 6, SHOP: 2 * 17}


def test_a_tenant_that_came_to_a_parent_brings_no_calls_of_before() -> None:
    at("06:30", edit("tenant", "acme", tier="pro", parent="globex"))
    Budget.objects.create(environment_id="production", name="own", tenant="globex", amount=9, period="day")
    # All below it move to another topmost tenant.
    assert added() == {MAIN: 24, ACME: 4 * 17, SHOP: 2 * 17, "own of globex": 4 * 17}


def test_a_tenant_that_moved_below_the_same_topmost_tenant_keeps_its_counter() -> None:
    edits.create_tenant(tenant="acme/eu", tier="pro", parent="acme", **WHY)
    revisions_are_older()
    at("06:30", edit("tenant", "acme/shop", tier="pro", parent="acme/eu"))
    assert added() == {MAIN: 24, ACME: 96, SHOP: 48, "pro-budget of acme/eu": 2 * 17}


def test_a_tenant_that_was_not_registered_had_the_default_tier() -> None:
    default = environment_of("production").default_tier.name
    Budget.objects.create(environment_id="production", name="any", tier=default, amount=9, period="day")
    UsageHour.objects.filter(name="acme/shop").update(name="new")
    UsageDay.objects.filter(tenant="acme/shop").update(tenant="new")
    at("06:30", lambda: edits.create_tenant(tenant="new", tier=default, **WHY))
    assert added()["any of new"] == 48
    at("07:30", edit("tenant", "new", tier="pro" if default == "free" else "free"))
    assert "any of new" not in added()
    at("08:30", edit("tenant", "new", tier=default))
    assert added()["any of new"] == 2 * (7 + 15)


def test_a_month_has_its_whole_days_and_the_hours_beside_them() -> None:
    Budget.objects.update(period="month")
    assert added() == {MAIN: 48, ACME: 192, SHOP: 96}
    at("20:00", edit("tenant", "acme/shop", tier="pro", parent=""), day=19)
    assert added() == {MAIN: 48, ACME: 96 + 2 * 20, SHOP: 2 * (4 + 24)}


def test_what_is_no_move_keeps_all_calls() -> None:
    at("06:30", edit("tenant", "acme/shop", tier="pro", parent="acme", title="The shop"))
    at("07:30", edit("account", "main", pools=[POOL], hosts=["eu.example"]))
    assert added() == {MAIN: 24, ACME: 96, SHOP: 48}
