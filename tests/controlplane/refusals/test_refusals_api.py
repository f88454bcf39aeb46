"""The API of refusals: samples page by page and as a file, counts and shares, and one sample explained."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.refusals.models import RefusalSample, RefusalService
from tests.controlplane.calling import API, send, token_of


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
        "tenant": "acme",
        "endpoint": "POST /v1/orders",
        "revision": 1,
        "retry_after_ms": 12_400,
        "ip": "0" * 16,
        "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
        "weight": 30.0,
    }
    others = ({}, {"tenant": "=cmd()"}, {"server": "web-2", "weight": 40.0}, {"at": now - timedelta(hours=3)})
    rows = [RefusalSample.objects.create(**usual | other) for other in others]
    RefusalSample.objects.create(**usual | {"environment": "staging"})
    return rows


def asked(query="", status=200):
    answer = send(token_of("viewer"), "GET", f"{API}/refusals{query}")
    assert answer.status_code == status, answer.content
    return answer


def test_samples_come_page_by_page_and_name_nobody(samples):
    first = asked("?limit=2").json()
    assert [item["id"] for item in first["items"]] == [samples[2].pk, samples[1].pk]
    assert first["next"] == samples[1].pk
    rest = asked(f"?limit=2&before={first['next']}").json()
    assert [item["id"] for item in rest["items"]] == [samples[0].pk]
    assert rest["next"] is None
    assert rest["items"][0]["pod"] == "web-1"
    assert rest["items"][0]["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert "ip" not in rest["items"][0]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("?pod=web-2", [2]),
        ("?tenant=acme&endpoint=POST+/v1/orders", [2, 0]),
        ("?tenant=%3Dcmd()", [1]),
        ("?reason=breaker_open", []),
        ("?tier=pro", [2, 0]),
        ("?dependency=openai", []),
    ],
)
def test_filters_are_those_of_the_page(samples, query, found):
    assert [item["id"] for item in asked(query).json()["items"]] == [samples[place].pk for place in found]


def test_a_range_reaches_further_back_and_must_be_one(samples):
    since = (timezone.now() - timedelta(hours=4)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert len(asked(f"?since={since}").json()["items"]) == 4
    asked("?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", 422)


@pytest.mark.parametrize("query", ["?rule=a%1Bb", "?unknown=1", "?wanted=acme", f"?tenant={'x' * 301}"])
def test_what_no_sample_can_match_is_refused(samples, query):
    asked(query, 422)


def test_the_file_has_the_filter_and_no_formula(samples):
    answer = asked("?tenant=%3Dcmd()&format=csv")
    lines = answer.content.decode().splitlines()
    assert len(lines) == 2
    assert "'=cmd()" in lines[1]
    assert answer["Content-Type"].startswith("text/csv")


def test_counts_and_estimates_are_apart(samples):
    found = asked("/counts").json()
    assert (found["counted"], found["samples"]) == (None, 3)
    assert [(line["value"], line["percent"], line["counted"]) for line in found["pod"]] == [
        ("web-1", 60.0, None),
        ("web-2", 40.0, None),
    ]


def test_a_sample_is_explained_by_its_number_in_its_environment_only(samples):
    found = asked(f"/samples/{samples[0].pk}").json()
    assert (found["tenant"], found["tenant_state"], found["retry_after_ms"]) == ("acme", "registered", 12_400)
    elsewhere = RefusalSample.objects.get(environment="staging").pk
    asked(f"/samples/{elsewhere}", 404)
