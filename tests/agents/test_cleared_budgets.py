"""A pod that has not spent a budget lately does not put back what an operator has cleared."""

import pytest
import redis

from fuseboard.contract import keys
from fuseboard.without_redis import kept_budgets
from tests.agents.test_budgets import ACCOUNT_KEY, ONE_USD, budget, call, pods, policy_of, spent
from tests.waiting import eventually


async def test_a_pod_puts_back_no_figure_of_before_the_counter_was_cleared(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kept_budgets, "LOOK_S", 0.02)
    async with pods(redis_url, policy_of(of_account=(budget(10 * ONE_USD),)), 2) as (idle, busy):
        kept = idle.admission.redis_fallback.budgets
        await call(idle, 6 * ONE_USD)
        await eventually(lambda: [one.amount for one in kept._kept.values()] == [6 * ONE_USD])
        limits.delete(ACCOUNT_KEY)
        kept.cleared(ACCOUNT_KEY.encode())
        kept.cleared(b"a budget that this pod has never spent")
        assert [one.amount for one in kept._kept.values()] == [0]
        await eventually(lambda: not kept._due and not kept._round)
        await call(busy, ONE_USD)
        limits.flushall()
        kept.look_at_all()
        await call(busy, 1)
        await eventually(lambda: limits.hgetall(keys.budget_mark(ACCOUNT_KEY)))
        await eventually(lambda: not kept._due and not kept._round)
        assert spent(limits, ACCOUNT_KEY) <= ONE_USD + 1
