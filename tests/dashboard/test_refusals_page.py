"""The page of refusals: counts and estimates apart, filters in the address, two clicks to an explanation."""

import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.utils import timezone
from fleet_rows import breaker, put_figures, put_server
from refused_samples import put_samples

from controlplane.usage.models import RuleDemand
from dashboard.views.refusals.refusal_log import FILTERS

pytestmark = pytest.mark.django_db(transaction=True)

#: Pages with figures of refusals -> the filters that their figures lead to.
FIGURES = {
    "/": [{}, {"dependency": "payments-api"}, {"tenant": "acme-retail"}],
    "/tenants": [{"tenant": "acme-retail"}],
    "/tenant?key=acme-retail": [
        {"tenant": "acme-retail"},
        {"tenant": "acme-retail", "rule": "requests", "range": "24h"},
    ],
    "/tenant?key=guest": [{"tenant": "guest"}, {"tenant": "guest", "rule": "requests", "range": "24h"}],
    "/breakers": [{"dependency": "payments-api"}],
    "/breakers/payments-api": [
        {"dependency": "payments-api"},
        {"dependency": "payments-api", "reason": "bulkhead_full"},
        {"dependency": "payments-api", "reason": "queue_timeout"},
    ],
    "/bulkheads": [
        {"dependency": "payments-api", "reason": "bulkhead_full"},
        {"dependency": "payments-api", "reason": "queue_timeout"},
    ],
    "/limits": [{"tenant": "acme-retail", "rule": "requests"}],
    "/servers/web-1": [{"pod": "web-1"}],
    "/tiers": [{"tier": "anonymous"}, {"tier": "pro"}],
}


@pytest.fixture
def samples(production):
    return put_samples()


@pytest.fixture
def figures(production):
    """Something is refused everywhere."""
    opened = breaker("payments-api", "open")
    put_server(breakers=[opened], load={"slots": 2, "calls_refused_per_s": 3.0})
    put_figures(
        tenants=[
            {"tenant": name, "requests_per_s": 60.0, "refused_per_s": 1.0}
            for name in ("acme-retail", "guest")
        ],
        dependencies={
            "payments-api": {
                "calls_per_s": 0.0,
                "failures_per_s": 0.0,
                "slow_per_s": 0.0,
                "refused_per_s": 4.0,
            }
        },
        rules=[
            {
                "tenant": "acme-retail",
                "rule": "requests",
                "asked_per_s": 15.0,
                "refused_per_s": 5.0,
                "shadow_per_s": 0.0,
            }
        ],
        protection={
            "payments-api": {
                "callers": 3,
                "tiers": {"standard": {"limit": 17, "active": 17, "full_per_s": 2.5, "timed_out_per_s": 1.0}},
            }
        },
    )
    hour = (timezone.now() - timedelta(hours=3)).replace(minute=0, second=0, microsecond=0)
    for tenant in ("acme-retail", "guest"):
        RuleDemand.objects.create(
            environment="production",
            tenant=tenant,
            rule="requests",
            grain_s=3600,
            at=hour,
            asked=9,
            refused=3,
            shadow=0,
        )


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


def test_a_tier_is_a_filter_and_callers_that_are_not_registered_are_of_the_default_one(log_in, samples):
    client = log_in("vera")
    assert "estimates from 2 samples" in page(client, "/refusals?range=24h&tier=pro")
    assert "estimates from 1 sample<" in page(client, "/refusals?range=24h&tier=anonymous")
    assert "No samples of this time" in page(client, "/refusals?range=24h&tier=enterprise")


@pytest.mark.parametrize("address", FIGURES)
def test_every_figure_of_refusals_leads_to_them(log_in, figures, address):
    shown = log_in("vera").get(address).content.decode().replace("&amp;", "&")
    found = [
        {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
        for link in re.findall(r'href="(/refusals[^"]*)"', shown)
    ]
    assert [link for link in FIGURES[address] if link not in found] == []
    assert {name for link in found for name in link} <= {*FILTERS, "range"}


def test_the_file_has_the_filter_and_no_formula(log_in, samples):
    answer = log_in("vera").get("/refusals?range=24h&tenant=%3Dcmd()&format=csv")
    lines = answer.content.decode().splitlines()
    assert len(lines) == 2
    assert "'=cmd()" in lines[1]
    assert answer["Content-Type"].startswith("text/csv")
