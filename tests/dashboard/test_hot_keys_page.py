"""The page of hot keys: who asks most, and how pods serve it."""

import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from fleet_rows import put_figures
from shown import text_of

from controlplane.editing import edits
from controlplane.fleet.models import Figures
from controlplane.refusals.models import RefusalSample
from tests.people import ADA


def rule(tenant: str, asked: float, **fields: Any) -> dict[str, Any]:
    usual = {"rule": "requests", "refused_per_s": 0.0, "shadow_per_s": 0.0}
    return {**usual, "tenant": tenant, "asked_per_s": asked} | fields


def put_sample(**columns: Any) -> None:
    usual = {
        "environment": "production",
        "at": timezone.now() - timedelta(minutes=3),
        "service": "shop",
        "server": "web-1",
        "rule": "requests",
        "reason": "quota",
        "mode": "shared",
        "tenant": "acme-retail",
        "revision": 1,
        "retry_after_ms": 0,
        "weight": 20.0,
    }
    RefusalSample.objects.create(**{**usual, **columns})


@pytest.fixture
def page(log_in: Any, production: str) -> Any:
    edits.set_tenant_quota(
        environment=production,
        tenant="acme-retail",
        quota="requests",
        expected_version=None,
        limit=360_000,
        window_s=60,
        burst=6_000,
        reason="for a test of it",
        actor=ADA,
    )

    def shown() -> str:
        return text_of(log_in("vera").get("/hot-keys").content.decode())

    return shown


def test_it_says_what_the_estimate_of_a_caller_counts(page: Any) -> None:
    """ "about 701" of a caller stood beside 938 counted refusals of its tenant, on another page."""
    put_sample(ip="00ff00ff00ff00ff")
    shown = page()
    assert "about 20" in shown
    for words in ("refusals of the last hour with this caller", "up to 30 s late", "they have more"):
        assert words in shown


def test_keys_are_listed_by_rate_with_how_they_are_served(page: Any) -> None:
    put_figures(
        rules=[
            rule("small", 3.0),
            rule("acme-retail", 5_800.0, leased_per_s=5_510.0, leased_since=time.time() - 600),
            rule("", 5_803.0),
        ]
    )
    text = page()
    assert text.index("acme-retail requests") < text.index("small requests")
    assert "fleet lease 95 % of the requests" in text
    assert "348k of 360k, near the limit" in text or "348,000 of 360,000, near the limit" in text
    assert "Redis, each request" in text
    assert "not leased" in text


def test_a_key_that_is_not_hot_says_from_which_rate_it_is_leased(page: Any) -> None:
    put_figures(rules=[rule("acme-retail", 40.0)])
    text = page()
    assert "Redis, each request" in text
    assert "leased above 5,000/s of the fleet" in text or "never leased" in text


def test_callers_have_digests_and_never_addresses(page: Any) -> None:
    assert "No sample of the last hour names a caller" in page()
    for number in range(3):
        put_sample(ip="0123456789abcdef", weight=number + 1.0)
    put_sample(api_key="aaaabbbbccccdddd", weight=100.0, tenant="")
    put_sample(ip="oldoldoldoldoldo", at=timezone.now() - timedelta(hours=2))
    text = page()
    assert text.index("API key aaaabbbbccccdddd none") < text.index("address 0123456789abcdef acme-retail")
    assert "about 6" in text
    assert "oldold" not in text


def test_without_figures_the_page_says_that_it_does_not_know(page: Any) -> None:
    put_figures(rules=[])
    assert "No tenant with a quota sends requests now" in page()
    Figures.objects.all().delete()
    assert "no data: nothing reported within a day" in page()


def test_figures_of_an_older_gateway_have_no_leased_requests_and_add_up(log_in: Any) -> None:
    put_figures(rules=[rule("acme-retail", 40.0, leased_per_s=10.0, leased_since=50.0)])
    document = Figures.objects.get().document | {"rules": [rule("acme-retail", 2.0)]}
    Figures.objects.create(gateway="old", environment="production", document=document)
    newer = Figures.objects.get(gateway="one").document
    newer["rules"].append(rule("acme-retail", 1.0, leased_per_s=1.0, leased_since=40.0))
    Figures.objects.filter(gateway="one").update(document=newer)
    (found,) = log_in("vera").get("/api/v1/production/fleet").json()["rules"]
    assert (found["asked_per_s"], found["leased_per_s"], found["leased_since"]) == (43.0, 11.0, 40.0)
