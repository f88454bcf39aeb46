"""The page of what pods allowed without Redis: outages, limits, what is missing, and its file."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from django.utils import timezone
from shown import text_of

from controlplane.fleet.models import Event
from controlplane.policies.models import Tenant
from controlplane.reconciliation.copying import copy, note_problem
from controlplane.reconciliation.models import AllowedAlone, LostCounts
from controlplane.series.kinds import FLEET
from fuseboard.contract import keys
from tests.controlplane.series.test_series_sealing import measure, row, thing, writer
from tools.demo.story.reconciliation import amount_on

QUOTA = keys.tenant_quota("production", "acme-retail", "requests")


@pytest.fixture
def outage(production: str, limits: redis.Redis) -> datetime:
    """Ten minutes of it, two hours ago, with a minute of calls; copied from Redis."""
    begin = timezone.now().astimezone(UTC).replace(second=0, microsecond=0) - timedelta(hours=2)
    about = {"environment": production, "server": "web-1", "boot": "boot-1", "kind": "mode"}
    Event.objects.create(detail="shared -> local: connection refused", at=begin, **about)
    Event.objects.create(detail="local -> ramping", at=begin + timedelta(minutes=10), **about)
    name = keys.offline_totals(QUOTA)
    limits.hset(
        name,
        mapping={
            "@id": "one",
            "quota:requests": 1_000_000,
            f"quota:requests@{int(begin.timestamp())}+60": 1_000_000,
        },
    )
    copy()
    return begin


def test_the_last_outage_is_shown_with_what_was_over(log_in: Any, outage: datetime) -> None:
    shown = text_of(log_in("vera").get("/reconciliation").content.decode())
    assert "shown below" in shown
    assert "acme-retail" in shown
    assert "Pods allowed 1,000,000 requests without Redis" in shown
    assert "calls over the limits." in shown
    assert re.search(r"Allowed without Redis [\d,]+ calls over the limits\.", shown), "below its name"
    assert "Not complete yet" not in shown


def test_the_checkpoint_of_the_demo_reads_the_table(log_in: Any, outage: datetime) -> None:
    page = log_in("vera").get("/reconciliation").content.decode()
    assert amount_on(page, "acme-retail", "requests") == 1_000_000
    assert amount_on(page, "acme-retail", "exports") == -1


def test_the_table_is_a_file(log_in: Any, outage: datetime) -> None:
    answer = log_in("vera").get("/reconciliation?csv=h-r")
    rows = b"".join(answer.streaming_content).decode().splitlines()
    assert rows[0] == (
        "Tenant,Dependency,Limit,Counts,Without Redis,With Redis,Limit allows,"
        '"Over the limit, surely","Over the limit, possibly"'
    )
    name, _, limit, counts, without, _, allows, over, most = rows[1].split(",")
    assert (name, limit, counts, without) == ("acme-retail", "requests", "calls", "1000000")
    assert 0 < int(allows) < int(over) <= int(most) <= 1_000_000, "numbers for a spreadsheet"


def test_single_decisions_are_told_apart_from_an_outage(log_in: Any, outage: datetime) -> None:
    """It said "every pod used Redis" below calls that pods had allowed without it."""
    assert "single decisions" not in text_of(log_in("vera").get("/reconciliation").content.decode())
    Event.objects.all().delete()
    since, until = outage - timedelta(minutes=5), outage + timedelta(minutes=20)
    query = urlencode({"since": since.isoformat(), "until": until.isoformat()})
    shown = text_of(log_in("vera").get(f"/reconciliation?{query}").content.decode())
    assert "Pods allowed 1,000,000 requests without Redis" in shown
    assert "These are single decisions whose answer from Redis was late or an error" in shown
    assert "No outage in the last 30 days: no pod was in fallback for 2 s or longer." in shown
    assert "every pod used Redis" not in shown


def test_what_is_missing_is_said(log_in: Any, outage: datetime) -> None:
    LostCounts.objects.create(
        environment="production",
        server="web-1",
        boot="boot-1",
        since=outage,
        until=outage + timedelta(minutes=1),
        uncounted=12,
        expired=1,
        adopted=2,
        unreported=3,
    )
    note_problem("ConnectionError: refused")
    shown = text_of(log_in("vera").get("/reconciliation").content.decode())
    assert "Pods had no room to count 12." in shown
    assert "Pods that are gone had not reported 3." in shown
    assert "1 journal of dead pods was too old to be reported." in shown
    assert "Other pods reported 2 journals of dead pods since then: what they counted is included." in shown
    assert "Redis could not be read: ConnectionError: refused." in shown


@pytest.mark.parametrize(
    "query",
    ["since=yesterday", "since=2026-01-01", "until=2026-01-01T00:00:00Z", "since=2020-01-01T00:00:00Z"],
)
def test_a_wrong_time_is_an_error_that_says_what_to_enter(log_in: Any, outage: datetime, query: str) -> None:
    answer = log_in("vera").get(f"/reconciliation?{query}")
    assert answer.status_code == 400
    assert "Enter " in text_of(answer.content.decode())


def test_the_page_of_pods_leads_to_it(log_in: Any, production: str) -> None:
    assert 'href="/reconciliation"' in log_in("vera").get("/servers").content.decode()
    assert "No outage in the last 30 days" in log_in("vera").get("/reconciliation").content.decode()


def test_one_tenant_is_answered_in_a_sentence(log_in: Any, outage: datetime) -> None:
    vera = log_in("vera")
    page = vera.get("/reconciliation?tenant=acme-retail").content.decode()
    answer = text_of(page.partition('id="answer">')[2].partition("</p>")[0])
    assert answer.startswith(
        "Pods allowed 1,000,000 requests of acme-retail without Redis, under 1 limit. Over a limit: requests,"
    )
    assert "requests, surely 998," in answer
    assert "possibly up to 1,000,000 calls" in answer
    assert "tenant=acme-retail" in page.partition('id="h-o"')[2], (
        "another outage is shown for the same tenant"
    )
    assert "of acme-retail without Redis" in text_of(vera.get("/reconciliation?tenant=acme").content.decode())
    since = (outage - timedelta(hours=3)).isoformat()
    query = urlencode({"tenant": "acme-retail", "since": since, "until": outage.isoformat()})
    page = vera.get(f"/reconciliation?{query}").content.decode()
    assert "Pods allowed no call of acme-retail without Redis." in page
    assert f'name="until" value="{outage.isoformat()}"' in page, "the next tenant is of the same time"


def test_a_call_under_two_limits_counts_once(log_in: Any, outage: datetime, limits: redis.Redis) -> None:
    """It read "Pods decided 200 calls locally, over 2 limits" of 100 calls that broke no limit."""
    at = int(outage.timestamp())
    name = keys.offline_totals(keys.tenant_quota("production", "acme-retail", "exports"))
    limits.hset(name, mapping={"quota:exports": 5, f"quota:exports@{at}+60": 5})
    copy()
    page = log_in("vera").get("/reconciliation?tenant=acme-retail").content.decode()
    answer = text_of(page.partition('id="answer">')[2].partition("</p>")[0])
    assert answer.startswith(
        "Pods allowed at least 1,000,000 requests of acme-retail without Redis, under 2 limits."
    )
    everything = text_of(log_in("vera").get("/reconciliation").content.decode())
    assert "Pods allowed at least 1,000,000 requests without Redis" in everything
    # The page said 45 calls, and the report of the incident 7,820: one counts what limits allowed.
    hour = outage.replace(minute=0)
    counted = {thing(FLEET, first_at=hour): row(FLEET, 9_000_000, decided_locally=7_820_000)}
    measure(writer(), outage.minute * 6, FLEET, counted, hour=hour)
    everything = text_of(log_in("vera").get("/reconciliation").content.decode())
    assert "In this time, pods decided 7,820,000 calls locally. Calls that pods refused" in everything


def test_calls_to_a_dependency_are_named_apart_and_count_once_for_tenants_and_vendor(
    log_in: Any, outage: datetime
) -> None:
    of_tenant = AllowedAlone.objects.filter(start__isnull=False).get()
    copies = [
        {"domain": of_tenant.domain, "dependency": "search", "rule": "searches", "amount": 30},
        {"domain": "d:search", "dependency": "search", "rule": "contract", "amount": 40},
        {"domain": "d:search", "dependency": "search", "rule": "costs", "amount": 900, "measure": "tokens"},
    ]
    for values in copies:
        AllowedAlone.objects.create(
            environment="production", field=f"{values['rule']}@0+60", counter=values["rule"], value=1,
            start=of_tenant.start, length_s=60, **values,
        )  # fmt: skip
    shown = text_of(log_in("vera").get("/reconciliation").content.decode())
    assert "Pods allowed 1,000,000 requests and 40 calls to dependencies without Redis" in shown


def test_an_unknown_tenant_is_named_with_those_like_it(log_in: Any, outage: datetime) -> None:
    vera = log_in("vera")
    assert "There is no tenant nobody." in vera.get("/reconciliation?tenant=nobody").content.decode()
    like = Tenant.objects.get(key="acme-retail")
    like.pk, like.key = None, "acme-books"
    like.save()
    page = vera.get("/reconciliation?tenant=acme").content.decode()
    assert "Several have this in their name: acme-books, acme-retail." in page


def test_the_page_of_a_tenant_leads_to_its_answer(log_in: Any, outage: datetime) -> None:
    page = log_in("vera").get("/tenant?key=acme-retail").content.decode()
    assert 'href="/reconciliation?tenant=acme-retail"' in page
