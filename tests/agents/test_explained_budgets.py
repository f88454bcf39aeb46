"""`fuseboard explain` names the budgets of a call: what is left of each, which refuses, and until when."""

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard import AgentSettings, Refused, blocking
from fuseboard.cli import main
from fuseboard.contract import keys
from fuseboard.contract.budgets import Account, AtSpent, Budget
from fuseboard.contract.policy import Dependency, TenantRecord, Tier
from fuseboard.contract.words import Period
from tests.agents.published import publish
from tests.agents.servers import POLICY

ONE_USD = 1_000_000


def budget(name: str, amount: int, period: Period = Period.MONTH, **more: Any) -> Budget:
    return Budget(name=name, amount=amount, period=period, **more)


#: Its day does not end while the tests run.
ZONE = "UTC" if datetime.now(UTC).hour < 12 else "America/New_York"
RULES = replace(
    POLICY,
    tiers=(Tier(name="free", budgets=(budget("pro-day", 2 * ONE_USD, Period.DAY, time_zone=ZONE),)),),
    dependencies=(
        Dependency(
            name="gpt", budgets=(budget("gpt-tokens", 1000, measure="tokens", at_100=AtSpent.WARN.value),)
        ),
    ),
    accounts=(
        Account(
            name="openai",
            pools=("gpt",),
            budgets=(budget("openai-month", 5 * ONE_USD, time_zone="America/New_York"),),
        ),
    ),
)


@pytest.fixture
def environment(limits: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(limits, RULES, revision=42, tenants={"acme": TenantRecord(tier="free")})
    for name in list(os.environ):
        if name.startswith("FUSEBOARD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def agent(environment: None, redis_url: str) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        yield agent


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        assert main([*arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def contents(limits: redis.Redis) -> dict[bytes, Any]:
    return {key: limits.dump(key) for key in limits.scan_iter()}


def spend(agent: blocking.Agent, micro_usd: int, **more: int) -> None:
    costs = {"micro_usd": micro_usd, **more}
    agent.admit_call("gpt", tenant="acme", costs=costs, spend_costs=True)


CALL = ("explain", "--dependency", "gpt", "--for-tenant", "acme")


def test_it_names_every_budget_of_a_call_whatever_the_call_costs(agent, run, limits):
    spend(agent, 1_500_000, tokens=1200)
    before = contents(limits)
    said = run(*CALL)
    assert contents(limits) == before
    found = [(one["kind"], one["owner"], one["name"], one["left"], one["refuses"]) for one in said["budgets"]]
    assert found == [
        ("tenant", "acme", "pro-day", 500_000, False),
        ("account", "openai", "openai-month", 3_500_000, False),
        ("dependency", "gpt", "gpt-tokens", -200, False),
    ]
    assert said["allowed"]
    assert not any(limit["name"].startswith("budget:") for limit in said["limits"])
    month = said["budgets"][1]
    assert month["ends_at"].endswith("-01 00:00 America/New_York")
    assert 0 < month["ends_in_s"] <= 31 * 86_400 + 3600


def test_a_spent_budget_refuses_until_its_period_ends(agent, run, limits, capsys):
    spend(agent, 2_000_000)
    plain, costly = run(*CALL), run(*CALL, "--costs", "micro_usd=10")
    assert plain["allowed"], "a call that costs no money spends no money"
    assert [one["name"] for one in plain["budgets"] if one["refuses"]] == ["pro-day"]
    assert (costly["allowed"], costly["reason"], costly["rule"]) == (False, "budget_spent", "budget:pro-day")
    with pytest.raises(Refused) as refused:
        spend(agent, 10)
    assert (refused.value.decision.rule, refused.value.decision.reason) == ("budget:pro-day", "budget_spent")
    assert abs(costly["retry_after_ms"] - refused.value.decision.retry_after_ms) < 60_000
    assert main(list(CALL)) == 0
    text = capsys.readouterr().out
    left = "0.00 USD of 2.00 USD per day left, 2.00 USD spent; ends"
    assert f"budget         'pro-day' of tenant acme: {left}" in text
    assert "; spent: calls that cost micro_usd are refused until then" in text


def test_the_account_and_its_stop_are_facts(agent, run, limits):
    assert "account        openai" in run(*CALL)["facts"]
    until = str(int((time() + 40) * 1_000_000))
    limits.hset(keys.account_stop(POLICY.environment, "openai"), "until", until)
    (fact,) = [fact for fact in run(*CALL)["facts"] if fact.startswith("account")]
    assert fact.startswith("account        openai, stopped: its vendor does not serve it, try again in ")


def test_an_account_that_is_spent_is_predicted(agent, run):
    for _ in range(2):
        agent.admit_call("gpt", costs={"micro_usd": 2_500_000})
    said = run("explain", "--dependency", "gpt", "--costs", "micro_usd=1")
    assert (said["allowed"], said["rule"]) == (False, "openai/budget:openai-month")
    with pytest.raises(Refused) as refused:
        agent.admit_call("gpt", costs={"micro_usd": 1})
    assert refused.value.decision.rule == said["rule"]


def test_a_request_of_a_tenant_names_its_budgets(agent, run):
    spend(agent, 1_500_000)
    said = run("explain", "--tenant", "acme")
    assert [(one["name"], one["left"]) for one in said["budgets"]] == [("pro-day", 500_000)]
    assert said["allowed"]


def test_without_redis_what_is_left_is_not_known(agent, run, monkeypatch, capsys, redis_url):
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", "redis://127.0.0.1:1/0")
    state = Path(os.environ["FUSEBOARD_STATE_DIR"])
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=state)):
        """Keeps the configuration on disk."""
    said = run(*CALL)
    assert {one["left"] for one in said["budgets"]} == {None}
    assert not any(one["refuses"] for one in said["budgets"])
    assert main(list(CALL)) == 0
    assert "what is left is not known" in capsys.readouterr().out
