"""The page of budgets, and the form that adds one: what is spent of calendar quotas, in their unit."""

import asyncio
import re
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import redis
from django.utils import timezone
from fleet_rows import put_figures
from shown import text_of

from controlplane.editing import edits
from controlplane.policies.models import TenantQuota, TierQuota, VendorLimit
from controlplane.series.kinds import DEPENDENCY, FLEET
from controlplane.series.models import Entity
from controlplane.usage import budgets as module
from controlplane.usage.clear_counter import clear_counter
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Period
from tests.agents.servers import PATIENT, POLICY, configured, running
from tests.controlplane.series.test_series_sealing import thing
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
    assert "0 USD, 0 %" in row
    spend(limits, own, 12_500_000)
    (row,) = rows(log_in)
    assert "acme-retail requests spend 50.00 USD per month" in row
    assert "12.50 USD, 25 %" in row


def test_a_budget_of_which_little_is_spent_or_left_is_not_empty_or_spent(
    log_in: Any, own: str, limits: Any
) -> None:
    spend(limits, own, 200_000)
    (row,) = rows(log_in)
    assert "0.20 USD, 0.4 %" in row
    spend(limits, own, 49_990_000)
    (row,) = rows(log_in)
    assert "49.99 USD, more than 99.9 %" in row


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
    assert "3.75 USD, 7.5 %" in row


def test_what_was_spent_in_an_earlier_period_does_not_count(log_in: Any, own: str, limits: Any) -> None:
    spend(limits, own, 49_000_000, ago_s=40 * 86_400)
    (row,) = rows(log_in)
    assert "0 USD, 0 %" in row
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

    def seen(part: float, spent: int, counted_from: float = 0.0) -> module.Budget:
        counter = module._Counter("k", "acme", "tenant", "pro", Row())
        now = (began + part * (ends - began)) / 1_000_000
        since = (began + counted_from * (ends - began)) / 1_000_000
        return module._budget(counter, f"{began} {spent}", now, since=since)

    assert (seen(0.5, 30).projected, seen(0.5, 30).state) == (60, "ok")
    assert (seen(0.25, 30).projected, seen(0.25, 30).state) == (120, "will_be_over")
    assert (seen(0.01, 30).projected, seen(0.01, 30).state) == (None, "ok")
    # Nothing was counted before: the calls of 5 % of the day continue for the half of it that is left.
    assert (seen(0.5, 30, 0.45).projected, seen(0.5, 30, 0.45).state) == (330, "will_be_over")
    assert (seen(0.5, 30, 0.49).projected, seen(0.5, 30, 0.49).state) == (None, "ok")


def test_a_budget_that_is_counted_for_minutes_is_not_projected_from_the_begin_of_its_period(
    log_in: Any, production: str, limits: Any, own: str
) -> None:
    """Calls are counted since pods are there, or since an operator cleared the counter."""
    edits.set_vendor_limit(dependency="search", name="contract", limit=1_000, **USUAL)
    key = keys.vendor_limit(production, "search", "contract")
    spend(limits, key, 20)
    spend(limits, own, 2_000_000)
    for kind, name in ((DEPENDENCY, "search"), (FLEET, "")):
        thing(kind, name, first_at=timezone.now() - timedelta(minutes=4))
    for row in rows(log_in):
        assert "too early until " in row, "once, beside Projected, and when it is known"
        assert "Within budget" in row
    Entity.objects.update(first_at=timezone.now() - timedelta(days=400))
    (budget, _) = module.budgets(production, set(), now=time.time()).rows
    assert budget.since == budget.began
    clear_counter(
        environment=production, limit="contract", dependency="search", reason="counted twice", actor=ADA
    )
    spend(limits, key, 20)
    (vendor,) = [row for row in rows(log_in) if "contract" in row]
    assert "too early" in vendor


def test_a_quota_on_a_dependency_is_projected_from_the_first_call_to_it(
    log_in: Any, production: str, limits: Any
) -> None:
    """Pods were there for a year, and called the dependency for 4 minutes."""
    edits.set_tenant_quota(tenant="acme-retail", quota="calls", dependency="search", limit=1_000, **USUAL)
    spend(limits, keys.dependency_quota(production, "search", "acme-retail", "calls"), 20)
    thing(FLEET, "", first_at=timezone.now() - timedelta(days=400))
    thing(DEPENDENCY, "search", first_at=timezone.now() - timedelta(minutes=4))
    (row,) = rows(log_in)
    assert "too early" in row


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
    assert 'href="/edit/tier?key=pro&amp;at=limit.exports.limit"' in html
    assert 'href="/edit/dependency?key=search&amp;at=limit.contract.limit"' in html
    vendor_limits = log_in("ada").get("/edit/dependency?key=search&at=limit.contract.limit")
    assert "Vendor limit contract" in vendor_limits.content.decode()
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
    shown = log_in("vera").get("/budgets").content.decode()
    assert "No budget yet" in shown
    assert "/budgets/new" not in shown
    assert log_in("vera").get("/budgets/new").status_code == 403
    shown = log_in("ada").get("/budgets").content.decode()
    assert (shown.count('href="/budgets/new"'), shown.count('href="/budgets/money/new"')) == (2, 2)
    for words in ("Add budget in USD", "Add budget of calls or tokens"):
        assert words in text_of(shown), "two buttons that can be told apart"


NEW: dict[str, Any] = {
    "whose": "tenant",
    "tenant": "acme-retail",
    "limit": "1000",
    "period": "day",
    "measure": "calls",
    "reason": "CHG-77 asked for by sales",
}


@pytest.mark.parametrize(
    ("typed", "model", "policy", "then"),
    [
        ({}, TenantQuota, "local_share", "/budgets?saved="),
        ({"whose": "tier", "tier": "pro"}, TierQuota, "local_share", "/tiers?saved="),
        ({"whose": "dependency", "dependency": "search"}, VendorLimit, "reserved", "/budgets?saved="),
    ],
)
def test_a_budget_is_added_with_undo(
    log_in: Any, limits: Any, typed: dict[str, str], model: Any, policy: str, then: str
) -> None:
    ada = log_in("ada")
    answer = ada.post("/budgets/new", NEW | typed)
    assert answer.status_code == 302, text_of(answer.content.decode())
    assert answer["Location"].startswith(then)
    row = model.objects.get(name="calls-per-day")
    assert (row.limit, row.algorithm, row.period, row.window_s) == (1_000, "fixed_window", "day", 86_400)
    assert (row.failure_policy, row.burst, row.measure, row.time_zone) == (policy, 1, "calls", "UTC")
    shown = ada.get(answer["Location"]).content.decode()
    assert "Undo" in shown
    assert "calls-per-day" in shown
    again = ada.post("/budgets/new", NEW | typed)
    assert again.status_code == 422
    assert "already has a limit calls-per-day" in text_of(again.content.decode())
    assert "calls-per-day" not in log_in("vera").get("/defaults").content.decode(), "it is the usual policy"


@pytest.mark.parametrize(
    ("typed", "control", "said"),
    [
        ({"whose": "nobody"}, "whose", "Choose whose budget it is."),
        ({"tenant": ""}, "tenant", "Enter the id of the tenant."),
        ({"tenant": "nobody"}, "tenant", "There is no tenant nobody."),
        ({"whose": "tier"}, "tier", "Choose a tier."),
        ({"whose": "dependency"}, "dependency", "Choose a dependency."),
        ({"period": "year"}, "period", "Choose a period."),
        ({"limit": "many"}, "limit", "Enter a whole number from 0 to 1,000,000,000."),
        ({"limit": "-1"}, "limit", "0 to"),
        ({"measure": "two words"}, "measure", "Use 1 to 64 letters"),
        ({"time_zone": "Mars"}, "zone", "time zone"),
        ({"name": "two words"}, "name", "Use 1 to 64 letters"),
        ({"reason": ""}, "reason", "Say why"),
    ],
)
def test_a_wrong_value_of_a_budget_is_reported_at_its_field(
    log_in: Any, typed: dict[str, str], control: str, said: str
) -> None:
    answer = log_in("ada").post("/budgets/new", NEW | typed)
    shown = answer.content.decode()
    assert answer.status_code == 422
    found = re.search(f'id="f-{control}_error">([^<]*)<', shown)
    assert found, text_of(shown)
    assert said in found[1]
    assert not TenantQuota.objects.exists()


def test_a_budget_does_not_replace_a_quota_of_the_tier(log_in: Any) -> None:
    edits.set_tier_quota(tier="pro", quota="exports", limit=200, **USUAL)
    answer = log_in("ada").post("/budgets/new", NEW | {"name": "exports"})
    assert "acme-retail already has a limit exports" in answer.content.decode()


def test_a_link_chooses_whose_budget_it_is(log_in: Any) -> None:
    shown = log_in("ada").get("/budgets/new?tier=pro").content.decode()
    assert '<option value="tier" selected>' in shown
    assert '<option value="pro" selected>' in shown
    shown = log_in("ada").get("/budgets/new?tenant=acme-retail").content.decode()
    assert 'name="tenant" value="acme-retail"' in shown
