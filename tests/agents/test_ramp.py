"""Redis is back: with the tuning of a new installation, the shared part grows from 10 to 100 % over 30 s."""

from typing import Any

import pytest
import redis

from fuseboard.contract.policy import Tuning
from fuseboard.contract.words import Mode
from fuseboard.decision import Permit
from fuseboard.store import health as health_module
from fuseboard.store.health import StoreHealth
from tests.agents.test_budgets import ONE_USD, budget, call, pods, policy_of

NOW_S = 1_000.0


class Answering:
    """A store that begins the ramp ``elapsed_s`` ago, as the first pod of the fleet did."""

    connected = True

    def __init__(self, elapsed_s: float) -> None:
        self._begun_us = int((NOW_S - elapsed_s) * 1_000_000)

    async def call(self, command: str, *words: object, timeout: float = 1.0) -> object:
        return str(self._begun_us).encode() if command == "GET" else None


async def ramp(monkeypatch: pytest.MonkeyPatch, passed_s: float, *, begun_before_s: float = 0.0) -> float:
    """The shared part, ``passed_s`` after this pod noticed that Redis answers."""
    now = NOW_S
    monkeypatch.setattr(health_module, "monotonic", lambda: now)
    monkeypatch.setattr(health_module, "RETURN_SPREAD_S", 0.0)
    health = StoreHealth(store=Answering(begun_before_s), environment="production", tuning=Tuning)  # type: ignore[arg-type]
    monkeypatch.setattr(health, "store_time_us", lambda: int(NOW_S * 1_000_000))
    await health._come_back(first=False)
    assert health.mode is Mode.RAMPING
    now = NOW_S + passed_s
    return round(health.shared_part, 3)


@pytest.mark.parametrize(
    ("passed_s", "part"), [(0, 0.1), (5, 0.25), (10, 0.4), (15, 0.55), (20, 0.7), (29.9, 0.997), (30, 1.0)]
)
async def test_the_shared_part_grows_evenly(monkeypatch: pytest.MonkeyPatch, passed_s: float, part: float):
    assert await ramp(monkeypatch, passed_s) == part


async def test_a_pod_that_notices_later_joins_the_ramp_of_the_fleet(monkeypatch: pytest.MonkeyPatch):
    assert await ramp(monkeypatch, 0, begun_before_s=10) == 0.4
    assert await ramp(monkeypatch, 10, begun_before_s=10) == 0.7


async def test_a_ramp_that_cannot_begin_in_time_has_a_cause(monkeypatch: pytest.MonkeyPatch):
    class Late(Answering):
        async def call(self, command: str, *words: object, timeout: float = 1.0) -> object:
            raise TimeoutError

    monkeypatch.setattr(health_module, "RETURN_SPREAD_S", 0.0)
    health = StoreHealth(store=Late(0.0), environment="production", tuning=Tuning)  # type: ignore[arg-type]
    health._news.set()
    await health._come_back(first=False)
    assert (health.mode, health.cause) == (Mode.LOCAL, "answers, but: TimeoutError")


async def test_an_answer_after_the_ramp_to_a_question_in_it_says_nothing_of_what_is_spent(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Less is left of a part of the limit than of all of it."""
    async with pods(redis_url, policy_of(of_account=(budget(10 * ONE_USD),))) as (pod,):
        learned: list[int] = []
        spending = pod.admission.settlements._spending
        monkeypatch.setattr(spending, "on_budget", lambda ref, amount, began_us: learned.append(amount))
        assert isinstance(await call(pod, 6 * ONE_USD), Permit)
        run, parts = pod.admission.store.run, [0.5]
        monkeypatch.setattr(StoreHealth, "rounded_shared_part", property(lambda _: parts[-1]))

        def end_the_ramp(*question: Any) -> None:
            parts.append(1.0)
            run(*question)

        monkeypatch.setattr(pod.admission.store, "run", end_the_ramp)
        assert isinstance(await call(pod, ONE_USD), Permit)
        assert isinstance(await call(pod, ONE_USD), Permit)
        assert learned == [6 * ONE_USD, 8 * ONE_USD]
