"""The worker corrects what is spent of budgets after a re-pricing, each correction once."""

import threading
from typing import Any

import pytest
import redis
from django.db import connections

from controlplane.repair import corrections
from controlplane.repricing import reprice
from controlplane.usage import clear_counter as clearing
from controlplane.usage.clear_counter import clear_counter
from controlplane.usage.models import BudgetCorrection
from fuseboard.contract import keys
from tests.controlplane.repricing.books import (
    WHY,
    again,
    costs,
    counter_keys,
    put_calls_of_today,
    someone_waits,
    spend,
    spent,
    worker,
)
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def priced(production: str, settings: Any, redis_url: str) -> None:
    settings.REDIS_URL = redis_url
    put_calls_of_today()


def test_a_price_that_was_too_high_gives_back_no_more_than_was_spent(limits: redis.Redis) -> None:
    spend(limits, "main", 100_000, period="day")
    with limits.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.budget_channel("production"))
        again(price={"input": 0, "output": 0})
        worker()
        # Pods that have not spent the budgets lately forget the larger figures.
        told: set[str] = set()
        wait_until(lambda: len(_heard(heard, told)) == 3)
    assert told == set(counter_keys().values())
    assert spent(limits, "main") == 0
    assert costs() == [77] * 4
    assert not BudgetCorrection.objects.exists()


def test_a_worker_that_stops_after_redis_has_a_correction_repeats_it_once(
    limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    again()
    run = corrections._CORRECT.run

    def stop(*given: Any, **named: Any) -> None:
        run(*given, **named)
        raise redis.TimeoutError("no answer in time")

    with monkeypatch.context() as patch:
        patch.setattr(corrections._CORRECT, "run", stop)
        worker()
    assert BudgetCorrection.objects.count() == 3
    for _ in range(2):
        worker()
        assert spent(limits, "main") == 1_500_000
    assert not BudgetCorrection.objects.exists()


def test_a_worker_that_stops_before_pods_know_of_less_tells_them_again(
    limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> None:
        raise redis.TimeoutError("no answer in time")

    again(price={"input": 0, "output": 0})
    with monkeypatch.context() as patch:
        patch.setattr(redis.Redis, "publish", stop)
        worker()
    with limits.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(keys.budget_channel("production"))
        worker()
        told: set[str] = set()
        wait_until(lambda: len(_heard(heard, told)) == 3)
    assert not BudgetCorrection.objects.exists()


def test_a_correction_of_a_period_that_is_over_is_dropped(limits: redis.Redis) -> None:
    again()
    BudgetCorrection.objects.update(ends=1)
    worker()
    assert not BudgetCorrection.objects.exists()
    assert spent(limits, "main") == 0


def test_a_damaged_counter_and_one_of_a_later_period_are_not_corrected(limits: redis.Redis) -> None:
    again()
    first, second, third = BudgetCorrection.objects.order_by("pk").values_list("key", flat=True)
    limits.sadd(first, "damaged")
    limits.set(second, "nothing known")
    limits.set(third, f"{2**52} 7")
    worker()
    assert (limits.type(first), limits.get(second), limits.get(third)) == (
        b"set",
        b"nothing known",
        f"{2**52} 7".encode(),
    )
    assert BudgetCorrection.objects.count() == 3


def test_corrections_of_damaged_counters_let_others_go_first(
    limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    again()
    first, second, third = BudgetCorrection.objects.order_by("pk").values_list("key", flat=True)
    limits.sadd(first, "damaged")
    limits.set(second, "nothing known")
    monkeypatch.setattr(corrections, "MAX_AT_ONCE", 1)
    for _ in range(3):
        worker()
    assert limits.get(third)
    # Each counts once its counter can be read.
    limits.delete(first, second)
    for _ in range(3):
        worker()
    assert not BudgetCorrection.objects.exists()
    assert [spent(limits, owner) for owner in ("main", "acme", "acme/shop")] == [
        1_500_000,
        1_500_000,
        500_000,
    ]


@pytest.mark.parametrize("first", ["clear", "reprice"])
def test_a_counter_that_is_cleared_while_calls_are_priced_again_gets_none_of_before(
    limits: redis.Redis, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The second one begins when the first has done all but its audit entry."""
    acts = {"clear": lambda: clear_counter(budget="main-budget", **WHY), "reprice": again}
    module = {"clear": clearing, "reprice": reprice}[first]
    second = acts["reprice" if first == "clear" else "clear"]
    ended: list[bool] = []

    def run() -> None:
        try:
            second()
        finally:
            ended.append(True)
            connections.close_all()

    thread = threading.Thread(target=run)
    name = {"clear": "record", "reprice": "_audit"}[first]
    write = getattr(module, name)

    def meet(*given: Any, **named: Any) -> None:
        monkeypatch.undo()
        thread.start()
        wait_until(lambda: bool(ended) or someone_waits())
        write(*given, **named)

    spend(limits, "main", 1_500_000, period="day")
    key = counter_keys()["main"]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, meet)
        acts[first]()
    thread.join()
    assert not BudgetCorrection.objects.filter(key=key).exists()
    worker()
    assert spent(limits, "main") == 0
    assert costs() == [3_000_077] * 4


def _heard(heard: Any, told: set[str]) -> set[str]:
    if message := heard.get_message(timeout=0.1):
        told.add(message["data"].decode())
    return told
