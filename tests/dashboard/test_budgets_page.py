"""The page of costs and budgets: what is spent of calendar quotas, in their unit."""

import asyncio
import re
import time
from typing import Any

import msgspec
import pytest
import redis
from fleet_rows import put_figures
from shown import text_of

from controlplane.editing import edits
from controlplane.usage import budgets as module
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Period
from tests.agents.servers import PATIENT, POLICY, configured, running
from tests.people import ADA

USUAL: dict[str, Any] = {
    "environment": "production",
    "expected_version": None,
    "reason": "for a test of it",
    "actor": ADA,
    "algorithm": "fixed_window",
    "window_s": 31 * 86_400,
    "period": "month",
}


def spend(limits: Any, key: str, amount: int, *, ago_s: float = 0.0) -> None:
    """As ``limits.lua`` writes a counter of a period."""
    began, _ = period_around(int((time.time() - ago_s) * 1_000_000), Period.MONTH, "UTC")
    limits.set(key, f"{began} {amount}")


def rows(log_in: Any, name: str = "vera") -> list[str]:
    html = log_in(name).get("/budgets").content.decode()
    return [text_of(row) for row in re.findall(r"<tr data-row.*?</tr>", html, re.DOTALL)]


@pytest.fixture
def own(production: str) -> str:
    edits.set_tenant_quota(
        tenant="acme-retail", quota="spend", limit=50_000_000, measure="micro_usd", **USUAL
    )
    return keys.tenant_quota(production, "acme-retail", "spend")


def test_what_is_spent_is_read_from_redis_in_the_unit_of_the_limit(
    log_in: Any, own: str, limits: Any
) -> None:
    (row,) = rows(log_in)
    assert "0.00 USD, 0 %" in row
    spend(limits, own, 12_500_000)
    (row,) = rows(log_in)
    assert "acme-retail requests spend 50.00 USD per month" in row
    assert "12.50 USD, 25 %" in row


@pytest.mark.parametrize(
    ("spent", "word"), [(40_000_000, "Above 80 %"), (50_000_000, "Over budget"), (51_000_000, "Over budget")]
)
def test_a_budget_warns_at_80_percent_and_at_its_end(
    log_in: Any, own: str, limits: Any, spent: int, word: str
) -> None:
    spend(limits, own, spent)
    (row,) = rows(log_in)
    assert word in row


def test_what_a_real_pod_spends_is_on_the_page(log_in: Any, own: str, redis_url: str) -> None:
    """The page reads what the script of the agent writes."""
    quota = Limit(
        name="spend",
        limit=50_000_000,
        window_ms=31 * 86_400_000,
        algorithm=Algorithm.FIXED_WINDOW,
        period=Period.MONTH,
        measure="micro_usd",
    )
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(quota,))
    policy = msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]), tuning=PATIENT)

    async def spend_some() -> None:
        async with running(redis_url, configuration=configured(policy)) as pod:
            for _ in range(3):
                await pod.admission.admit_request("acme-retail", costs={"micro_usd": 1_250_000})

    asyncio.run(spend_some())
    (row,) = rows(log_in)
    assert "3.75 USD, 7 %" in row


def test_what_was_spent_in_an_earlier_period_does_not_count(log_in: Any, own: str, limits: Any) -> None:
    spend(limits, own, 49_000_000, ago_s=40 * 86_400)
    (row,) = rows(log_in)
    assert "0.00 USD, 0 %" in row
    limits.set(own, "garbage")
    (row,) = rows(log_in)
    assert "unknown" in row


def test_a_shorter_period_includes_what_the_longer_one_has_counted(
    log_in: Any, own: str, limits: Any
) -> None:
    edits.set_tenant_quota(
        **USUAL | {"tenant": "acme-retail", "quota": "spend", "limit": 50_000_000, "period": "day"}
    )
    now_us = time.time_ns() // 1_000
    began, ends = period_around(now_us, Period.MONTH, "UTC")
    day, _ = period_around(now_us, Period.DAY, "UTC")
    limits.set(own, f"{began if began < day else began - 1} 12500000", px=(ends - now_us) // 1_000 + 1_000)
    (row,) = rows(log_in)
    assert "12.50 USD, 25 %" in row


def test_the_projection_follows_the_part_of_the_period_that_has_passed() -> None:
    began, ends = period_around(1_800_000_000_000_000, Period.DAY, "UTC")

    class Row:
        name, measure, limit, dependency, shadow = "n", "tokens", 100, "", False
        period, time_zone = "day", "UTC"

    def seen(part: float, spent: int) -> module.Budget:
        counter = module._Counter("k", "acme", "tenant", "pro", Row())
        now = (began + part * (ends - began)) / 1_000_000
        return module._budget(counter, f"{began} {spent}", now)

    assert (seen(0.5, 30).projected, seen(0.5, 30).state) == (60, "ok")
    assert (seen(0.25, 30).projected, seen(0.25, 30).state) == (120, "will_be_over")
    assert (seen(0.01, 30).projected, seen(0.01, 30).state) == (None, "ok")


def test_vendor_limits_and_tiers_of_busy_tenants_are_budgets_too(
    log_in: Any, production: str, limits: Any
) -> None:
    edits.set_vendor_limit(dependency="search", name="contract", limit=1_000, **USUAL)
    edits.set_tier_quota(tier="pro", quota="exports", limit=200, **USUAL)
    assert not any("exports" in row for row in rows(log_in)), "only of busy tenants"
    asked = {"asked_per_s": 1.0, "refused_per_s": 0.0, "shadow_per_s": 0.0}
    put_figures(rules=[{"tenant": "acme-retail", "rule": "requests"} | asked])
    spend(limits, keys.vendor_limit(production, "search", "contract"), 900)
    spend(limits, keys.tenant_quota(production, "acme-retail", "exports"), 20)
    vendor, tier = rows(log_in)
    assert "all tenants search contract 1,000 calls per month 900 calls, 90 %" in vendor
    assert "exports 200 calls per month, from tier pro 20 calls, 10 %" in tier
    html = log_in("ada").get("/budgets").content.decode()
    assert 'href="/edit/tier?key=pro"' in html
    assert 'href="/breakers/search/settings"' in html
    assert "/edit/tier" not in log_in("vera").get("/budgets").content.decode().split("<main")[1]


def test_without_redis_it_is_unknown_and_not_zero(
    log_in: Any, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(_: object) -> None:
        raise redis.ConnectionError("refused")

    monkeypatch.setattr(module, "read_many", down)
    text = text_of(log_in("vera").get("/budgets").content.decode())
    assert "Redis does not answer" in text
    assert "spend 50.00 USD per month unknown" in text
    assert "0 %" not in text.split("Redis does not answer")[1]


def test_without_a_budget_the_page_says_how_to_make_one(log_in: Any) -> None:
    assert "No budget yet" in log_in("vera").get("/budgets").content.decode()
