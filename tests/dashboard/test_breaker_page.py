"""The page of a breaker: how calls failed, and what each pod sees."""

import time
from typing import Any

import pytest
from django.db import OperationalError
from fleet_rows import breaker, put_new_servers
from shown import text_of

from controlplane.status import read_facts
from dashboard.live import breaker_page
from dashboard.live.breaker_page import MAX_AGREEING, MAX_DIFFERING

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def put_failures(gateway: str = "g1", **document: Any) -> None:
    from controlplane.fleet.models import FailedCalls

    now = time.time()
    usual = {
        "since": now - 7200,
        "calls": [
            [now - 3, "web-1", "boot-000", 8, "HTTP 503", "failure", TRACE],
            [now - 9, "web-2", "boot-000", 3, "slow", "slow", ""],
        ],
        "kinds": [[now - 7000, {"HTTP 500": 1000}], [now - 300, {"HTTP 503": 30, "timeout": 9, "slow": 1}]],
    }
    FailedCalls.objects.create(
        gateway=gateway, environment="production", dependency="payments-api", document=usual | document
    )


def page(log_in: Any, tab: str = "") -> str:
    return str(log_in("vera").get(f"/breakers/payments-api{tab}").content.decode())


def test_the_page_lists_the_last_failures_and_their_kinds(production: str, log_in: Any) -> None:
    put_failures()
    html = page(log_in, "/history")
    text = text_of(html)
    assert f"HTTP 503 web-1 {TRACE}" in text
    assert "slow web-2 none" in text
    assert "HTTP 503 30 75 %" in text
    assert "timeout 9 22 %" in text
    assert "HTTP 500" not in text, "older than an hour"
    assert 'href="/servers/web-1"' in html


def test_it_says_why_there_are_none(production: str, log_in: Any) -> None:
    assert "No failed or slow call is recorded" in text_of(page(log_in, "/history"))
    text = text_of(page(log_in))
    assert "Duration of calls not measured no call lately" in text


def test_both_pages_of_a_breaker_have_one_p99_and_say_of_when(
    production: str, log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list had a p99 below the mean of the other page, which is of the last seconds: neither said so."""
    monkeypatch.setattr(read_facts, "recent_p99_ms", lambda _: {"payments-api": 47.0})
    assert "p99 47 ms of the last minute, all pods" in text_of(page(log_in))
    listed = text_of(log_in("vera").get("/breakers").content.decode())
    assert "p99, 1 min" in listed
    assert "47 ms" in listed


def test_without_postgres_the_rest_of_the_page_stays(
    production: str, log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise OperationalError("no connection")

    monkeypatch.setattr(breaker_page, "recent_failures", down)
    assert "Not known while Postgres is unavailable" in text_of(page(log_in, "/history"))


def test_a_thousand_pods_make_no_long_page_and_those_that_differ_come_first(
    production: str, log_in: Any
) -> None:
    odd, same = (f"odd-{number:03}" for number in range(60)), (f"same-{number:04}" for number in range(1000))
    put_new_servers(odd, breakers=[breaker("payments-api", "open", local=True)])
    put_new_servers(same, breakers=[breaker("payments-api")])
    html = page(log_in)
    text = text_of(html)
    assert html.count('href="/servers/odd-') == MAX_DIFFERING
    assert 'href="/servers/same-' not in html
    assert f"{60 - MAX_DIFFERING} more pods report another state" in text
    assert "1003 pods report closed, like the fleet; those that differ are listed" in text
    assert len(html) < 120_000


def test_a_small_fleet_is_listed_whole(production: str, log_in: Any) -> None:
    html = page(log_in)
    assert [html.count(f'href="/servers/web-{number}"') for number in (1, 2, 3)] == [1, 1, 1]
    assert MAX_AGREEING >= 20
