"""Whatever happens in whatever order, the ledger and the budgets have what the calls cost.

Calls, heartbeats, new prices, re-pricings, processes that stop in any place, repeats, and a Redis that loses
everything. After each settling, a budget is the sum of its calls in the ledger, to the micro-USD.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import date, timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import redis
from django.utils import timezone
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from controlplane.ledger.models import UsageDay, UsageHour, UsageTotal, Whose
from controlplane.redis.scripts import Script
from controlplane.repair import budgets, corrections
from controlplane.repricing import ledger_costs, reprice
from controlplane.usage.models import BudgetCorrection, KnownBudget
from tests.controlplane.ledger.ledger_rows import today
from tests.controlplane.repricing.books import MODEL, WHY, heartbeat, set_up, spend, spent, worker

FEW = settings(
    max_examples=12,
    stateful_step_count=12,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

PRICES = st.sampled_from([0, 1, 333_333, 1_000_000, 2_000_001, 9_000_000])
TENANTS = st.sampled_from(["acme", "acme/shop"])
#: Owner of a budget -> whose calls it counts.
COUNTS = {"main": ("acme", "acme/shop"), "acme": ("acme", "acme/shop"), "acme/shop": ("acme/shop",)}


def repricing_machine(limits: redis.Redis) -> type[RuleBasedStateMachine]:
    class Repricing(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            for model in (UsageHour, UsageDay, UsageTotal, BudgetCorrection, KnownBudget):
                model.objects.all().delete()
            limits.flushall()
            self.price = 1_000_000
            #: Day and tenant, or service -> tokens and cost in the ledger.
            self.tokens: dict[tuple[date, str], int] = defaultdict(int)
            self.costs: dict[tuple[date, str], int] = defaultdict(int)
            #: Day, tenant, tokens and cost of calls that no heartbeat has brought.
            self.parts: list[tuple[date, str, int, int]] = []

        def day(self, ago: int) -> date:
            """Of the present month, so that the budgets have its calls."""
            return max(today() - timedelta(days=ago), today().replace(day=1))

        # The worker looks at the tenants of two days.
        @rule(tenant=TENANTS, ago=st.integers(0, 1), tokens=st.integers(1, 2_000_000))
        def call(self, tenant: str, ago: int, tokens: int) -> None:
            """Its pod charges the budgets at once."""
            cost = -(-tokens * self.price // 1_000_000)
            for owner, tenants in COUNTS.items():
                if tenant in tenants:
                    spend(limits, owner, cost)
            self.parts.append((self.day(ago), tenant, tokens, cost))

        @rule(number=st.integers(1, 3))
        def heartbeats(self, number: int) -> None:
            for _ in range(min(number, len(self.parts))):
                day, tenant, tokens, cost = self.parts.pop(0)
                heartbeat(day, tenant, service="all", fresh=tokens, micro_usd=cost)
                for whose in (tenant, "all"):
                    self.tokens[day, whose] += tokens
                    self.costs[day, whose] += cost

        @rule(price=PRICES)
        def the_price_changes(self, price: int) -> None:
            self.price = price

        @rule(price=PRICES, since=st.integers(0, 2), until=st.integers(0, 2), stops=st.booleans())
        def calls_are_priced_again(self, price: int, since: int, until: int, *, stops: bool) -> None:
            first, last = sorted((self.day(since), self.day(until)))
            stop = patch.object(reprice, "_audit", side_effect=ZeroDivisionError) if stops else nullcontext()
            try:
                with stop:
                    reprice.reprice_calls(
                        model=MODEL,
                        since=first,
                        until=last,
                        price={"input": price, "output": 0},
                        expected_version=None,
                        **WHY,
                    )
            except ZeroDivisionError:
                return
            for (day, whose), tokens in self.tokens.items():
                if first <= day <= last:
                    self.costs[day, whose] = -(-tokens * price // 1_000_000)

        @rule(after=st.integers(0, 3), reached=st.booleans())
        def the_worker_runs_and_stops(self, after: int, *, reached: bool) -> None:
            """``reached``: Redis has the correction whose answer the worker does not get."""
            run, left = corrections._CORRECT.run, [after]

            def stops(*given: Any, **named: Any) -> Any:
                answer = run(*given, **named) if left[0] or reached else None
                if not left[0]:
                    raise redis.TimeoutError("no answer")
                left[0] -= 1
                return answer

            with patch.object(corrections._CORRECT, "run", stops):
                worker()

        @rule()
        def the_worker_runs(self) -> None:
            worker()

        @rule(price=PRICES, again=st.booleans(), corrected=st.booleans())
        def redis_loses_everything(self, price: int, *, again: bool, corrected: bool) -> None:
            """After a look of the worker; and calls may be priced again between the look and the loss."""
            self.heartbeats(len(self.parts))
            worker()
            if again:
                self.calls_are_priced_again(price, 0, 2, stops=False)
            if corrected:
                corrections.correct_budgets("production", timezone.now())
            limits.flushall()

        @rule()
        def all_is_settled(self) -> None:
            self.heartbeats(len(self.parts))
            worker()
            worker()
            assert self.in_ledger() == {key: cost for key, cost in self.costs.items() if self.tokens[key]}
            by_day = UsageDay.objects.values_list("day", "micro_usd")
            totals = dict(UsageTotal.objects.values_list("day", "micro_usd"))
            for day, total in totals.items():
                assert total == sum(cost for of, cost in by_day if of == day)
            assert not BudgetCorrection.objects.exists()
            for owner, tenants in COUNTS.items():
                whose = ("all",) if owner == "main" else tenants
                expected = sum(cost for (_, of), cost in self.costs.items() if of in whose)
                assert spent(limits, owner) == expected, owner

        def in_ledger(self) -> dict[tuple[date, str], int]:
            hours = UsageHour.objects.values_list("at", "name", "whose", "micro_usd")
            days = {
                (day, name): cost
                for day, name, cost in UsageDay.objects.values_list("day", "tenant", "micro_usd")
            }
            of_services = {
                (at.date(), name): cost for at, name, whose, cost in hours if whose == Whose.SERVICE
            }
            of_tenants = {(at.date(), name): cost for at, name, whose, cost in hours if whose == Whose.TENANT}
            assert days == of_tenants
            return days | of_services

        def teardown(self) -> None:
            self.all_is_settled()

    return Repricing


@pytest.fixture
def machine(
    production: str,
    limits: redis.Redis,
    settings: Any,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> type[RuleBasedStateMachine]:
    settings.REDIS_URL = redis_url
    # No pod has anything left to report to the Redis that is back.
    monkeypatch.setattr(budgets, "_LEDGER_WAITS_US", 0)
    set_up()
    return repricing_machine(limits)


def test_the_books_are_right_after_anything(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=FEW)


@contextmanager
def counted_twice() -> Iterator[None]:
    text = corrections._CORRECT.text
    assert text.count("== 1 then return { 1") == 1
    with patch.object(
        corrections, "_CORRECT", Script(text.replace("== 1 then return { 1", "== 7 then return { 1"))
    ):
        yield


@contextmanager
def restored_with_what_waits() -> Iterator[None]:
    """The restore after a loss has the correction from the ledger, and it is added again."""
    with patch.object(budgets, "_waiting", lambda *_: {}):
        yield


@contextmanager
def priced_before_it_is_compared() -> Iterator[None]:
    """What is added to budgets is computed from rows that have the new price already."""
    lock = ledger_costs.Costs.lock

    def too_early(costs: ledger_costs.Costs) -> None:
        lock(costs)
        costs.write()

    with patch.object(ledger_costs.Costs, "lock", too_early):
        yield


@contextmanager
def seen_as_before() -> Iterator[None]:
    """The worker keeps what it saw before the correction, and puts it back after a loss."""
    with patch.object(corrections, "_NEW", 7):
        yield


@contextmanager
def seen_in_another_store() -> Iterator[None]:
    """The worker adds a correction to what it saw before Redis lost it, and puts that back beside it."""
    done = corrections._done

    def with_any_mark(row: BudgetCorrection, _: str, *, is_new: bool) -> None:
        known = KnownBudget.objects.get(key=row.key)
        done(row, known.mark, is_new=is_new)

    with patch.object(corrections, "_done", with_any_mark):
        yield


@contextmanager
def totals_as_before() -> Iterator[None]:
    with patch.object(ledger_costs, "sum_up", lambda _: "SELECT %s, %s, %s"):
        yield


def _priced_again(books: Any) -> None:
    books.call("acme/shop", 0, 1_000_000)
    books.heartbeats(1)
    books.calls_are_priced_again(2_000_001, 0, 2, stops=False)


def _stopped(books: Any) -> None:
    _priced_again(books)
    books.the_worker_runs_and_stops(0, reached=True)


def _lost(books: Any, price: int, *, corrected: bool) -> None:
    books.call("acme", 0, 1_000_000)
    books.redis_loses_everything(price, again=True, corrected=corrected)


def _lost_while_it_waits(books: Any) -> None:
    _lost(books, 9_000_000, corrected=False)
    books.the_worker_runs_and_stops(0, reached=False)


def _lost_when_nothing_was_spent(books: Any) -> None:
    _lost(books, 0, corrected=True)
    books.calls_are_priced_again(2_000_001, 0, 2, stops=False)
    books.the_worker_runs()


#: A fault, and what notices it.
MUTANTS: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (counted_twice, _stopped),
    (restored_with_what_waits, _lost_while_it_waits),
    (seen_as_before, partial(_lost, price=0, corrected=True)),
    (seen_in_another_store, _lost_when_nothing_was_spent),
    (priced_before_it_is_compared, _priced_again),
    (totals_as_before, _priced_again),
)


@pytest.mark.parametrize(("mutant", "steps"), MUTANTS, ids=lambda given: getattr(given, "__name__", "steps"))
def test_a_mutant_is_noticed(
    machine: type[RuleBasedStateMachine], mutant: Callable[[], Any], steps: Callable[[Any], None]
) -> None:
    def run() -> None:
        books: Any = machine()
        books.begin()
        steps(books)
        books.all_is_settled()

    run()
    with mutant(), pytest.raises(AssertionError):
        run()
