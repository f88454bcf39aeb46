"""Runs the code in docs/limits.md and docs/breakers.md as it is, with the limits in these pages."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from fuseboard import Agent, Reason, Refused
from fuseboard.contract import keys
from fuseboard.contract.policy import (
    BreakerPolicy,
    Dependency,
    Limit,
    TenantRecord,
    Tier,
    decode_policy,
    encode_policy,
)
from fuseboard.contract.words import Algorithm, BreakerState, FailurePolicy
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.waiting import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


#: Every limit on the page, by name.
LIMITS = {
    limit.name: limit
    for limit in (msgspec.json.decode(text, type=Limit) for text in blocks("limits.md", "json"))
}


@pytest.fixture
async def page(
    request: pytest.FixtureRequest,
    limits: redis.Redis,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[dict[str, Any]]:
    """The names of a page's Python blocks, its agent running."""
    policy = msgspec.structs.replace(
        POLICY,
        tiers=(
            Tier(name="free", quotas=(LIMITS["open-reports"], LIMITS["daily-spend"])),
            Tier(name="site", quotas=(LIMITS["logins"],)),
        ),
        dependencies=(
            Dependency(name="llm", vendor_limits=(LIMITS["model-tokens"],), breaker=BREAKER),
            Dependency(name="payments-api", breaker=BREAKER),
        ),
    )
    publish(
        limits, decode_policy(encode_policy(policy)), revision=1, tenants={"shop": TenantRecord(tier="site")}
    )
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    names: dict[str, Any] = {}
    for code in blocks(request.param, "python"):
        exec(compile(code, f"docs/{request.param}", "exec"), names)  # noqa: S102 - our own page
    async with names["agent"] as agent:
        await eventually(lambda: agent.configuration.snapshot.head.revision == 1)
        yield names


@pytest.mark.parametrize("page", ["limits.md"], indirect=True)
class TestLimits:
    async def test_an_estimate_is_reserved_and_settled(self, page: dict[str, Any]):
        async def model(prompt: str) -> dict[str, Any]:
            return {"text": prompt.upper(), "tokens": 40, "micro_usd": 200}

        assert await page["ask_model"](model, "hello", "acme") == "HELLO"
        agent: Agent = page["agent"]

        async def left() -> int | None:
            permit = await agent.admit_call("llm", costs={"tokens": 1})
            agent.give_back(permit)
            return permit.decision.limits[0].remaining

        await eventually(left, accept=lambda tokens: tokens == 10_000 - 40 - 1)

        async def budget() -> Any:
            return await page["budget_left"]("acme")

        said = await budget()
        assert said["refused"] is None
        assert said["warning"] is False
        assert 4_990_000 < said["left"] <= 4_999_800

    async def test_a_budget_warns_and_is_spent(self, page: dict[str, Any]):
        await page["agent"].admit_request("acme", costs={"micro_usd": 4_000_000})
        assert (await page["budget_left"]("acme"))["warning"]
        await page["agent"].admit_request("acme", costs={"micro_usd": 999_999})
        assert (await page["budget_left"]("acme"))["refused"] is Reason.BUDGET_SPENT

    async def test_users_and_addresses_are_counted_together(self, page: dict[str, Any]):
        for _ in range(5):
            assert await page["login"]("shop", "ada", "192.0.2.1") == "welcome"
        with pytest.raises(Refused, match="logins"):
            await page["login"]("shop", "ada", "192.0.2.1")
        assert await page["login"]("shop", "ada", "192.0.2.2") == "welcome"

    async def test_a_tenant_and_an_address_are_asked_together(self, page: dict[str, Any]):
        may_import = page["may_import"]
        assert (await may_import("acme", "192.0.2.1", 3))["allowed"]
        refused = {"allowed": False, "tenant lacks": "open-reports", "address lacks": ""}
        assert await may_import("acme", "192.0.2.1", 3) == refused

    async def test_a_wait_is_held_until_there_is_room(self, page: dict[str, Any]):
        under_way, open_now = asyncio.Event(), 0

        async def work() -> str:
            nonlocal open_now
            open_now += 1
            assert open_now <= 4
            await under_way.wait()
            open_now -= 1
            return "done"

        nights = [asyncio.create_task(page["nightly"]("acme", work)) for _ in range(6)]
        await eventually(lambda: open_now == 4)
        under_way.set()
        assert await asyncio.gather(*nights) == ["done"] * 6


def test_every_limit_on_the_page_is_one_and_every_word_of_them_is_explained():
    text = (DOCS / "limits.md").read_text()
    policy = msgspec.structs.replace(POLICY, tiers=(Tier(name="free", quotas=tuple(LIMITS.values())),))
    assert len(decode_policy(encode_policy(policy)).tiers[0].quotas) == len(LIMITS) == 8
    for word in [*Algorithm, *FailurePolicy]:
        assert f"`{word}`" in text
    for name in Limit.__struct_fields__:
        assert name in text


@pytest.mark.parametrize("page", ["breakers.md"], indirect=True)
class TestBreakers:
    async def test_what_is_offered_while_the_vendor_is_not_called(self, page: dict[str, Any]):
        called = 0

        async def vendor() -> str:
            nonlocal called
            called += 1
            raise TimeoutError

        for _ in range(BREAKER.consecutive_failures):
            assert await page["rate_of"](vendor, "yesterday's") == "yesterday's"
        await eventually(lambda: is_open(page))
        before = called
        assert await page["rate_of"](vendor, "yesterday's") == "yesterday's"
        assert called == before

        view = page["breaker_of"]("payments-api")
        assert view.state is BreakerState.OPEN

    async def test_a_cooldown_is_obeyed(self, page: dict[str, Any], limits: redis.Redis):
        async def vendor() -> tuple[int, int]:
            return 429, 30

        assert await page["charge"](vendor) == 429
        with pytest.raises(Refused, match="cooling_down"):
            await page["charge"](vendor)
        await eventually(lambda: limits.exists(keys.cooldown("production", "payments-api")))


def test_the_page_names_every_condition_and_time_of_a_breaker():
    text = (DOCS / "breakers.md").read_text()
    for name in BreakerPolicy.__struct_fields__:
        assert name in text


def test_every_part_of_the_breaker_links_to_its_table_of_states():
    text = (DOCS / "breakers.md").read_text()
    rows = re.findall(r"^\| `((?:agents|controlplane)/[\w./]+)` \|", text, re.MULTILINE)
    assert len(rows) == 5
    for path in rows:
        head = (DOCS.parent / path).read_text()[:1500]
        assert "docs/breakers.md has the table of all states." in head, path


def test_the_table_of_states_names_every_cause_of_a_transition():
    text = (DOCS / "breakers.md").read_text()
    scripts = ("agents/fuseboard/lua/parts/breaker.lua", "agents/fuseboard/lua/report.lua")
    code = "".join((DOCS.parent / path).read_text() for path in scripts)
    moves = r"(?:move\(breaker, '\w+', |change_state\('\w+', |\bopen\(|cause, threshold = )'(\w+)'"
    causes = set(re.findall(moves, code))
    assert len(causes) == 7
    assert {cause for cause in causes if f"`{cause}`" not in text} == set()


def is_open(page: dict[str, Any]) -> bool:
    views = {view.dependency: view.state for view in page["agent"].views()}
    return views["payments-api"] is BreakerState.OPEN
