"""Calls counted by a wrong price are priced again: in the ledger, in budgets, with both sums in the audit."""

import threading
from datetime import date, timedelta
from typing import Any

import pytest
import redis
from django.db import connections, transaction
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.ledger import edits as ledger
from controlplane.ledger.models import UsageDay, UsageHour, Whose
from controlplane.policies.document import environment_of, policy_of
from controlplane.repricing import reprice
from controlplane.repricing.ledger_costs import Costs, Window
from controlplane.repricing.reprice import BudgetSum, preview_repricing, reprice_calls
from controlplane.spending.models import Budget, Model
from controlplane.usage.clear_counter import clear_counter
from controlplane.usage.models import BudgetCorrection
from fuseboard.contract.budgets import MAX_BUDGET
from fuseboard.contract.models import micro_usd, price_at
from tests.controlplane.calling import API, problem
from tests.controlplane.ledger.ledger_rows import days_ago, today
from tests.controlplane.repricing.books import (
    MILLION,
    MODEL,
    POOL,
    RIGHT,
    WHY,
    again,
    asked,
    books,
    costs,
    heartbeat,
    put_calls_of_today,
    someone_waits,
    spend,
    spent,
    worker,
)
from tests.waiting import wait_until

DAILY: dict[str, Any] = {"account": "main", "amount": 9, "period": "day"}


@pytest.fixture(autouse=True)
def priced(production: str, settings: Any, redis_url: str) -> None:
    settings.REDIS_URL = redis_url
    put_calls_of_today()


def test_a_preview_has_both_sums_and_writes_nothing(limits: redis.Redis) -> None:
    spend(limits, "main", 1_500_000, period="day")
    before, stored = books(), {key: limits.dump(key) for key in limits.scan_iter()}
    found = preview_repricing(**asked())
    # 1 million tokens of input for 2 USD, and a tenth of a million of output for 1 USD.
    assert (found.calls, found.tokens, found.before, found.after) == (2, 1_100_000, 1_500_000, 3_000_000)
    assert found.budgets == (
        # That of acme has what its shop spends too.
        BudgetSum(budget="pro-budget", counters=2, added=1_500_000 + 500_000),
        BudgetSum(budget="main-budget", counters=1, added=1_500_000),
    )
    assert books() == before
    assert not BudgetCorrection.objects.exists()
    assert not Entry.objects.filter(action="ledger.repriced").exists()
    assert {key: limits.dump(key) for key in limits.scan_iter()} == stored


def test_the_ledger_the_budgets_and_the_audit_get_the_sums_of_the_preview(limits: redis.Redis) -> None:
    for owner, amount in (("main", 1_500_000), ("acme", 1_500_000), ("acme/shop", 500_000)):
        spend(limits, owner, amount, period="day")
    shown = preview_repricing(**asked())
    assert again() == shown
    assert costs() == [3_000_077] * 4
    assert UsageDay.objects.get(model="another").micro_usd == 77
    worker()
    assert [spent(limits, owner) for owner in ("main", "acme", "acme/shop")] == [
        3_000_000,
        3_000_000,
        1_000_000,
    ]
    entry = Entry.objects.get(action="ledger.repriced")
    assert (entry.actor, entry.reason, entry.target_name) == ("ada", WHY["reason"], MODEL)
    assert entry.before == {"cost": "1.50 USD"}
    assert entry.after == {
        "cost": "3.00 USD",
        "days": f"{today()} to {today()}",
        "calls": "2",
        "price": "input 2.00 USD, cached 0.20 USD, written 2.00 USD, output 10.00 USD",
        "spent": "pro-budget +2,000,000 micro-USD, main-budget +1,500,000 micro-USD",
    }
    assert "acme" not in str(entry.after), "the audit is never deleted"


def test_repeated_it_changes_nothing_more(limits: redis.Redis) -> None:
    again()
    worker()
    done = again()
    assert (done.before, done.after, done.budgets) == (3_000_000, 3_000_000, ())
    worker()
    assert costs() == [3_000_077] * 4
    assert spent(limits, "main") == 1_500_000
    # With the former price, it is undone.
    again(price={"input": 1_000_000, "output": 5_000_000})
    worker()
    assert costs() == [1_500_077] * 4
    assert spent(limits, "main") == 0


def test_a_price_from_tomorrow_and_yesterday_priced_again(limits: redis.Redis) -> None:
    """The first applies at its instant; the second corrects yesterday, and no budget of today."""
    yesterday = days_ago(1)
    heartbeat(yesterday, "acme", fresh=MILLION, cached=MILLION, micro_usd=1_000_000)
    spend(limits, "main", 1_500_000, period="day")
    price = {"input": 1_000_000, "output": 5_000_000}
    for start, columns in ((yesterday, price), (today() + timedelta(days=1), RIGHT)):
        version = Model.objects.get().version
        edits.set_price(
            model=MODEL, starts_at=start.isoformat(), price=columns, expected_version=version, **WHY
        )
    [model] = policy_of(environment_of("production")).models
    midnight = model.prices[-1].starts_at_s
    assert midnight % 86_400 == 0
    paid = [price_at(model, at) for at in (midnight - 0.001, midnight)]
    assert [one and micro_usd(one, fresh=MILLION) for one in paid] == [1_000_000, 2_000_000]

    done = again(since=yesterday, until=yesterday)
    assert (done.before, done.after, done.budgets) == (1_000_000, 2_200_000, ())
    row = UsageDay.objects.get(tenant="acme", day=yesterday)
    assert (row.micro_usd, row.saved_micro_usd) == (2_200_000, 1_800_000)
    worker()
    assert spent(limits, "main") == 1_500_000
    entry = Entry.objects.get(action="ledger.repriced")
    assert (entry.before, entry.after and entry.after["cost"]) == ({"cost": "1.00 USD"}, "2.20 USD")


def test_a_budget_of_a_month_gets_all_its_days_and_no_earlier_one(limits: redis.Redis) -> None:
    Budget.objects.update(period="month")
    first = today().replace(day=1)
    heartbeat(first - timedelta(days=1), "acme", fresh=MILLION, micro_usd=1_000_000)
    heartbeat(first, "acme", fresh=MILLION, micro_usd=1_000_000)
    done = again(since=first - timedelta(days=1))
    assert (done.before, done.after) == (3_500_000, 7_000_000)
    assert {one.budget: one.added for one in done.budgets} == {
        "main-budget": 2_500_000,
        "pro-budget": 3_000_000,
    }


def test_calls_from_before_the_model_was_published_get_a_price(limits: redis.Redis) -> None:
    """The ledger has them under the names in the requests."""
    version = Model.objects.get().version
    edits.set_model(model=MODEL, aliases=["large"], expected_version=version, **WHY)
    for name in ("large", f"{MODEL}-2026-01-01", "large@20260101"):
        heartbeat(today(), "", model=name, fresh=500_000, unpriced=1)
    heartbeat(today(), "", model=f"{MODEL}-mini", fresh=500_000, unpriced=1)
    done = again()
    assert (done.calls, done.before, done.after) == (5, 1_500_000, 6_000_000)
    assert UsageDay.objects.filter(unpriced=1).values_list("model", flat=True).get() == f"{MODEL}-mini"


def test_calls_of_another_model_keep_their_price(limits: redis.Redis) -> None:
    """A name with a date is that of this model only as long as no other one has it."""
    edits.set_model(model=f"{MODEL}-2026-01-01", expected_version=0, **WHY)
    edits.set_model(model="mini", aliases=[f"{MODEL}@20260101"], expected_version=0, **WHY)
    for name in (f"{MODEL}-2026-01-01", f"{MODEL}@20260101"):
        heartbeat(today(), "", model=name, fresh=MILLION, micro_usd=5)
    assert again().calls == 2
    assert list(UsageDay.objects.filter(tenant="").values_list("micro_usd", flat=True)) == [5, 5]


def test_usage_that_a_pod_invents_stops_no_repricing(limits: redis.Redis) -> None:
    """Its parts can be more than the whole, and the sum of its tenants more than a budget can be."""
    odd: dict[str, Any] = {"output": 2**60, "micro_usd": 1, "wasted_micro_usd": 2**60, "estimated": 2**60}
    heartbeat(today(), "odd", **odd)
    for number in range(9):
        heartbeat(today(), f"odd-{number}", output=1, micro_usd=2**60)
    again()
    row = UsageDay.objects.get(tenant="odd")
    assert (row.micro_usd, row.wasted_micro_usd) == (MAX_BUDGET, MAX_BUDGET)
    amounts = BudgetCorrection.objects.values_list("amount", flat=True)
    assert min(amounts) == -MAX_BUDGET


def test_what_was_wasted_and_estimated_stays_the_same_part() -> None:
    heartbeat(today(), "cut", calls=4, fresh=MILLION, micro_usd=4, wasted=1, wasted_micro_usd=1)
    heartbeat(today(), "free", calls=4, fresh=MILLION, estimated=1, unpriced=4)
    again()
    assert UsageDay.objects.get(tenant="cut").wasted_micro_usd == 500_000
    assert UsageDay.objects.get(tenant="free").estimated_micro_usd == 500_000


def test_the_preview_counts_the_calls_that_the_ledger_cannot_tell_apart() -> None:
    price = {"batch_percent": 50, "long_above": 400_000, "long_input": 9, "long_output": 9}
    edits.set_price(
        model=MODEL,
        starts_at="2025-12-01",
        price=RIGHT | price,
        expected_version=Model.objects.get().version,
        **WHY,
    )
    heartbeat(today(), "globex", calls=9, fresh=1_000_000)
    found = preview_repricing(**asked())
    # A million tokens of input are at most two calls with more than 400,000; and acme has one call.
    assert (found.calls, found.batch_calls, found.long_calls) == (11, 11, 3)
    Model.objects.get().prices.all().delete()
    found = preview_repricing(**asked())
    assert (found.batch_calls, found.long_calls) == (0, 0)


def test_a_budget_that_was_cleared_or_made_later_gets_no_earlier_calls(limits: redis.Redis) -> None:
    """To the hour: the ledger has whole hours. The calls are of the first hour of this day."""
    edits.set_budget(budget="new", expected_version=0, **DAILY, **WHY)
    clear_counter(budget="pro-budget", tenant="acme", **WHY)
    assert [(one.budget, one.counters, one.added) for one in again().budgets] == [
        ("main-budget", 1, 1_500_000),
        ("pro-budget", 1, 500_000),
    ]


def test_a_budget_that_was_made_within_the_hour_gets_no_calls_of_that_hour(limits: redis.Redis) -> None:
    """A budget of some minutes got the difference of all calls of the hour, which it had never counted."""
    UsageHour.objects.update(at=timezone.now().replace(minute=0, second=0, microsecond=0))
    edits.set_budget(budget="new", expected_version=0, **DAILY, **WHY)
    names = {one.budget for one in preview_repricing(**asked()).budgets}
    assert "main-budget" in names
    assert "new" not in names


def changed_by(*, set_first: dict[str, Any]) -> set[str]:
    """The budgets that calls of this day change, after an import sets one: its audit names no budget."""
    apply_plan(plan=plan_from_document({"budgets": set_first}), prune=False, expected_revision=None, **WHY)
    return {one.budget for one in preview_repricing(**asked()).budgets}


def test_a_budget_of_an_imported_file_gets_no_calls_of_before(limits: redis.Redis) -> None:
    assert changed_by(set_first={"new": DAILY}) == {"main-budget", "pro-budget"}


def test_a_budget_that_gets_another_period_gets_no_calls_of_before(limits: redis.Redis) -> None:
    """Its counter went on from the calls that the shorter period had."""
    Budget.objects.create(environment_id="production", name="hourly", **DAILY | {"period": "hour"})
    assert changed_by(set_first={"hourly": DAILY}) == {"main-budget", "pro-budget"}


def test_a_budget_that_is_changed_otherwise_or_made_again_keeps_its_counter(limits: redis.Redis) -> None:
    assert changed_by(set_first={"main-budget": DAILY | {"amount": 10}}) == {"main-budget", "pro-budget"}
    version = Budget.objects.get(name="main-budget").version
    edits.remove_budget(budget="main-budget", expected_version=version, **WHY)
    assert changed_by(set_first={"main-budget": DAILY}) == {"main-budget", "pro-budget"}
    moved = DAILY | {"account": "", "dependency": POOL}
    assert changed_by(set_first={"main-budget": moved}) == {"pro-budget"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"since": date(2020, 1, 1), "until": date(2020, 1, 1)}, "since"),
        ({"since": days_ago(62)}, "since"),
        ({"until": today() + timedelta(days=2)}, "until"),
        ({"since": today() + timedelta(days=2), "until": today()}, "since"),
        ({"price": {"input": 1}}, "output"),
        ({"price": RIGHT | {"long_above": 9}}, "long_above"),
        ({"price": RIGHT | {"input": -1}}, "input"),
    ],
)
def test_what_cannot_be_priced_is_said_at_its_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEdit) as refused:
        preview_repricing(**asked(**wrong))
    assert field in refused.value.errors
    with pytest.raises(NotFound):
        preview_repricing(**asked(model="unknown"))


def test_so_many_rows_that_gateways_would_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reprice, "MAX_ROWS", 2)
    preview_repricing(**asked())
    heartbeat(today(), "globex", fresh=MILLION)
    with pytest.raises(InvalidEdit, match="Enter fewer days") as refused:
        again()
    assert list(refused.value.errors) == ["since"]


def test_a_model_that_was_changed_since_the_preview_is_a_conflict() -> None:
    version = preview_repricing(**asked()).version
    edits.set_price(model=MODEL, starts_at="2025-12-01", price=RIGHT, expected_version=version, **WHY)
    with pytest.raises(EditConflict) as refused:
        reprice_calls(**asked(**WHY, expected_version=version))
    assert refused.value.by == "ada"
    assert costs() == [1_500_077] * 4


def test_a_process_that_stops_before_the_commit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(reprice, "_audit", stop)
        with pytest.raises(ZeroDivisionError):
            again()
    assert costs() == [1_500_077] * 4
    assert not BudgetCorrection.objects.exists()


def test_the_audit_lists_the_budgets_that_change_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reprice, "MAX_AUDITED", 1)
    again()
    after = Entry.objects.get(action="ledger.repriced").after or {}
    assert after["spent"] == "pro-budget +2,000,000 micro-USD and 1 more"


def test_heartbeats_wait_and_are_in_all_books(limits: redis.Redis) -> None:
    """What gateways write during a re-pricing keeps its price, in the hours as in the days."""
    done: list[str] = []

    def beat() -> None:
        heartbeat(today(), "acme", fresh=MILLION, micro_usd=5)
        heartbeat(today(), "new", service="new", fresh=MILLION, micro_usd=5)
        done.append("written")
        connections.close_all()

    thread = threading.Thread(target=beat)
    with transaction.atomic():
        costs_of = Costs(
            environment="production",
            models=[MODEL],
            window=Window(today(), today()),
            **RIGHT,
            written=2_000_000,
        )
        costs_of.lock()
        thread.start()
        wait_until(someone_waits)
        costs_of.write()
        assert not done
    thread.join()
    assert costs() == [3_000_077 + 10] * 4


def test_two_at_once_wait_for_each_other(limits: redis.Redis) -> None:
    failed: list[BaseException] = []

    def run(price: int) -> None:
        try:
            again(price={"input": price, "output": price})
        except BaseException as error:
            failed.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(price * MILLION,)) for price in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    worker()
    [cost] = {cost - 77 for cost in costs()}
    assert cost in (3_300_000, 4_400_000, 5_500_000)
    assert spent(limits, "main") == cost - 1_500_000


def test_tidying_and_erasing_a_tenant_keep_what_was_priced(limits: redis.Redis) -> None:
    again()
    ledger.erase_tenant("production", "acme")
    ledger.tidy()
    assert costs() == [3_000_077] * 4
    assert UsageHour.objects.filter(whose=Whose.TENANT, name="", model=MODEL).get().micro_usd == 2_000_000
    again(price={"input": 0, "output": 0})
    assert costs() == [77] * 4


def test_the_api_previews_and_corrects(call: Any, limits: redis.Redis) -> None:
    path = f"{API}/models/{MODEL}/reprice"
    body = {"since": str(today()), "until": str(today()), **RIGHT}
    found = call("admin", "POST", f"{path}/preview", body).json()
    assert (found["before"], found["after"], found["budgets"][0]["added"]) == (
        1_500_000,
        3_000_000,
        2_000_000,
    )
    assert costs() == [1_500_077] * 4
    wrong = problem(call("admin", "POST", path, body | {"expected_version": 1}), 422)
    assert [error["field"] for error in wrong["errors"]] == ["reason"]
    because = body | {"reason": WHY["reason"]}
    assert call("admin", "POST", path, because).status_code == 428
    problem(call("admin", "POST", path, because | {"expected_version": found["version"] + 1}), 409)
    headers = {"If-Match": f'"{found["version"]}"', "Idempotency-Key": "once"}
    done = call("admin", "POST", path, because, **headers)
    assert done.json() == found
    assert call("admin", "POST", path, because, **headers).json() == found
    assert costs() == [3_000_077] * 4
    for where in (path, f"{path}/preview"):
        problem(call("operator", "POST", where, because | {"expected_version": 1}), 403)
