"""The page of refusals: counts and estimates apart, filters in the address, two clicks to an explanation."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.policies.models import Environment
from controlplane.refusals.models import RefusalSample, RefusalService

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def samples(production):
    now = timezone.now()
    RefusalService.objects.create(environment="production", service="shop", last_on=now.date())
    usual = {
        "environment": "production",
        "at": now - timedelta(minutes=2),
        "service": "shop",
        "server": "web-1",
        "rule": "requests",
        "reason": "quota",
        "mode": "shared",
        "tenant": "acme-retail",
        "endpoint": "POST /v1/orders",
        "revision": Environment.objects.get(pk="production").revision,
        "retry_after_ms": 12_400,
        "weight": 90.0,
    }
    return [
        RefusalSample.objects.create(**usual),
        RefusalSample.objects.create(**{**usual, "endpoint": "GET /v1/items", "weight": 10.0}),
        RefusalSample.objects.create(**{**usual, "tenant": "=cmd()", "at": now - timedelta(hours=3)}),
    ]


def page(client, address):
    answer = client.get(address)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_an_estimate_is_a_share_and_never_a_count(log_in, samples):
    shown = page(log_in("vera"), "/refusals")
    assert "Pods do not count this combination, or nothing is stored of it." in shown
    assert "shares are estimates from 2 samples" in shown
    assert "90 %" in shown
    assert ">100<" not in shown  # the sum of the weights


def test_filters_and_the_range_are_in_the_address(log_in, samples):
    client = log_in("vera")
    shown = page(client, "/refusals?endpoint=GET+%2Fv1%2Fitems")
    assert "estimates from 1 sample<" in shown
    shown = page(client, "/refusals?range=24h")
    assert "estimates from 3 samples" in shown
    assert "tenant=acme-retail" in shown
    # An unknown range is the usual one. NUL is refused on every page, before a filter reads it.
    assert "estimates from 2 samples" in page(client, "/refusals?range=never")
    assert client.get("/refusals?pod=%00none").status_code == 400


def test_a_sample_leads_to_its_explanation(log_in, samples):
    client = log_in("vera")
    assert f'href="/explain/{samples[0].pk}"' in page(client, "/refusals")
    shown = page(client, f"/explain/{samples[0].pk}")
    assert "the quota was spent" in shown
    assert "Tenant acme-retail" in shown
    assert client.get("/explain/999999999").status_code == 404


def test_the_file_has_the_filter_and_no_formula(log_in, samples):
    answer = log_in("vera").get("/refusals?range=24h&tenant=%3Dcmd()&format=csv")
    lines = answer.content.decode().splitlines()
    assert len(lines) == 2
    assert "'=cmd()" in lines[1]
    assert answer["Content-Type"].startswith("text/csv")
