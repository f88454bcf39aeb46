"""The settings of a dependency, and what protects pods, in a real browser."""

import os
from typing import Any

import pytest
from browsing import Clicks, becomes
from fleet_rows import notify, put_figures, put_server

from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LOAD = {
    "pressure": 820,
    "level": "shed",
    "cause": "94 calls wait (limit 100)",
    "cpu": 950,
    "memory": 610,
    "lag_ms": 12,
    "in_flight": 40,
    "waiting": 94,
    "p95_ms": 740,
    "errors_per_s": 0.4,
    "unready": True,
    "slots": 50,
    "slots_in_use": 38,
    "queued": 9,
    "calls_refused_per_s": 1.5,
    "retries_per_s": 0.5,
}
SLOTS = {"limit": 25, "active": 12}
FULL = {"limit": 17, "active": 17, "queued": 9, "full_per_s": 2.5, "timed_out_per_s": 1.0}
PROTECTION = {
    "payments-api": {
        "callers": 1,
        "mean_ms": 1200,
        "mean_pods": 1,
        "first_calls_per_s": 20.0,
        "retries_per_s": 1.5,
        "helped_per_s": 1.0,
        "no_budget_per_s": 0.5,
        "fallbacks_per_s": 2.0,
        "tiers": {"critical": SLOTS, "standard": FULL, "optional": {"limit": 8, "active": 8}},
    }
}


def pictures(page: Any, name: str) -> None:
    """Save both themes for people: PICTURES_OF_TESTS names a folder."""
    if folder := os.environ.get("PICTURES_OF_TESTS"):
        for theme in ("dark", "light"):
            page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
            for width in (1440, 390):
                page.set_viewport_size({"width": width, "height": 1000})
                page.screenshot(path=f"{folder}/{name}-{theme}-{width}.png", full_page=True)
        page.set_viewport_size({"width": 1440, "height": 1000})


def test_an_admin_changes_a_dependency_with_advice_while_typing(sign_in: Any) -> None:
    page = sign_in("ada")
    page.goto("/breakers/payments-api")
    page.click("nav.tabs >> text=Settings")
    page.wait_for_load_state()
    page.fill("#f-breaker-open_ms", "5000")
    becomes(page, "document.querySelector('#preview').innerText.includes('pen time is 5,000 ms')")
    becomes(page, "document.querySelector('#preview').innerText.includes('60,000')")
    page.fill("#f-protection-bulkhead-max_concurrent", "many")
    becomes(page, "document.querySelector('#preview').innerText.includes('Enter a whole number')")
    pictures(page, "dependency-wrong")
    page.fill("#f-protection-bulkhead-max_concurrent", "30")
    page.fill("#f-breaker-open_ms", "45000")
    becomes(page, "document.querySelector('#preview').innerText.includes('45,000')")
    becomes(page, "!document.querySelector('#preview').innerText.includes('pen time is')")
    pictures(page, "dependency")
    page.fill("#f-reason", "the vendor became slower")
    page.click("button:has-text('Save payments-api')")
    page.wait_for_selector("#hero")
    row = Dependency.objects.get(name="payments-api")
    assert (row.open_ms, row.protection["bulkhead"]["max_concurrent"]) == (45_000, 30)


def test_an_admin_adds_a_dependency_with_all_of_its_parts_in_three_clicks(
    sign_in: Any, production: str
) -> None:
    clicks = Clicks(sign_in("ada"))
    page = clicks.page
    clicks.on("#nav a[href='/breakers']")
    clicks.on("text=Add dependency")
    becomes(page, "document.activeElement.id === 'f-name'")
    page.keyboard.type("ledger")
    page.select_option("#f-kind", "llm")
    becomes(page, "document.querySelector('[name=drawn_for]').value === 'llm'")
    becomes(page, "document.querySelector('#f-breaker-slow_ms').value === '30000'")
    page.fill("#f-owner", "billing")
    page.fill("#f-breaker-open_ms", "45000")
    page.fill("#f-protection-bulkhead-max_concurrent", "30")
    page.fill("#f-protection-retry-attempts", "4")
    becomes(page, "document.querySelector('#preview').innerText.includes('3 retries, after')")
    becomes(page, "document.querySelector('#preview').innerText.includes('Saving adds ledger')")
    pictures(page, "dependency-new")
    page.fill("#f-reason", "the ledger moved to a vendor")
    clicks.on("#dependency-form button[type=submit]")
    page.wait_for_selector(".saved .undo")
    row = Dependency.objects.get(name="ledger")
    assert (row.kind, row.owner, row.open_ms) == ("llm", "billing", 45_000)
    assert row.protection["bulkhead"]["max_concurrent"] == 30
    assert row.protection["retry"]["attempts"] == 4
    assert clicks.count == 3


def test_an_admin_protects_pods_and_lets_a_part_only_observe(sign_in: Any) -> None:
    page = sign_in("ada")
    page.goto("/servers")
    page.click("text=Change…")
    page.wait_for_load_state()
    assert not page.is_visible("#f-protection-shedding-queue_max")
    page.click("#part-shedding summary")
    assert not page.is_visible("#f-protection-shedding-queue_max")
    page.select_option("#f-protection-shedding-on", "on")
    assert page.is_visible("#f-protection-shedding-queue_max")
    page.select_option("#f-observe_for_s-shedding", "86400")
    page.fill("#f-protection-routes", "POST /v1/*")
    becomes(page, "document.querySelector('#preview').innerText.includes('Line 1')")
    page.fill("#f-reason", "requests pile up at noon")
    page.click("button:has-text('Save')")
    page.wait_for_selector("#f-protection-routes_error")
    pictures(page, "protection-wrong")
    page.fill("#f-protection-routes", "POST /v1/* = 2000")
    becomes(page, "document.querySelector('#preview').innerText.includes('POST /v1/* 2,000 ms')")
    pictures(page, "protection")
    page.click("button:has-text('Save')")
    page.wait_for_selector("#rows")
    saved = environment_of("production").protection
    assert saved["routes"] == [{"pattern": "POST /v1/*", "sla_ms": 2000}]
    assert saved["shedding"]["queue_max"] == 100
    assert saved["observe"].keys() == {"shedding_until_us"}
    put_server("web-1", load=LOAD | {"observed_per_s": 2.5})
    notify()
    becomes(page, "document.querySelector('#protection').innerText.includes('refused 2.5 requests/s')")
    becomes(page, "document.querySelector('#protection').innerText.includes('CPU is at 95 %')")
    pictures(page, "protection-saved")


def test_people_see_pressure_bulkheads_and_retries(sign_in: Any) -> None:
    put_server("web-1", load=LOAD)
    put_figures(protection=PROTECTION)
    page = sign_in("ada")
    page.goto("/breakers/payments-api")
    becomes(page, "document.querySelector('#protection').innerText.includes('17 / 17')")
    pictures(page, "breaker-protection")
    page.goto("/servers")
    becomes(page, "document.querySelector('#rows').innerText.includes('pressure 0.82')")
    pictures(page, "pods-pressure")
    page.goto("/servers/web-1")
    assert "sheds the lowest tiers" in page.inner_text("main")
    pictures(page, "pod-load")
