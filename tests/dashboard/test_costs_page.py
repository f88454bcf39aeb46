"""The page of costs: what models cost this month, by whom, and what of it is wasted, saved or not known."""

import csv
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from shown import text_of

from controlplane.editing import edits
from controlplane.ledger.models import UsageReceipt
from controlplane.status.read_watched import _spending, forget
from tests.controlplane.ledger.ledger_rows import days_ago, put_day, put_hour, today
from tests.people import ADA


def page(log_in: Any, query: str = "") -> str:
    answer = log_in("vera").get(f"/costs{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def rows(html: str) -> list[str]:
    return [text_of(row) for row in re.findall(r"<tr data-row.*?</tr>", html, re.DOTALL)]


@pytest.fixture
def month(production: str) -> None:
    put_day(
        today(),
        tenant="acme-retail",
        calls=1_204,
        fresh=900,
        cached=300,
        output=40,
        micro_usd=12_500_000,
        saved_micro_usd=1_620_000,
        wasted=3,
        wasted_micro_usd=40_000,
        estimated=301,
        estimated_micro_usd=51_000,
    )
    put_day(today(), tenant="globex", model="nobody-knows", calls=2, unpriced=2, fresh=7)
    put_day(today(), tenant="", micro_usd=500_000)
    put_hour(datetime.now(UTC), service="shop", micro_usd=13_000_000, calls=1_207)


def test_without_a_call_the_page_is_one_sentence_that_says_how_to_begin(log_in: Any, production: str) -> None:
    """Six figures of 0 USD came before it."""
    html = page(log_in)
    assert "No call to a model is counted yet: add your models and their prices" in text_of(html)
    for link in ("/models", "/help#documentation"):
        assert f'<a class="link" href="{link}">' in html
    main = html.partition("<main")[2]
    assert "0 USD" not in main
    assert "<table" not in main
    put_day(days_ago(40), tenant="initech", micro_usd=2_000_000)
    html = page(log_in)
    assert f"month={days_ago(40):%Y-%m}" in html, "the month that has calls is offered"
    assert 'class="kpi"' not in html


def test_a_projection_waits_for_a_whole_day_of_calls(log_in: Any, production: str) -> None:
    put_day(today(), tenant="acme-retail")
    assert "too early known after a whole day of calls" in text_of(page(log_in))


def test_the_month_is_summed_and_listed_by_model_those_without_a_price_first(
    log_in: Any, month: None
) -> None:
    html = page(log_in)
    shown = text_of(html)
    assert "13.00 USD this month" in shown
    assert "2 calls had no price, and cost nothing here." in shown
    for figure in (
        "This month 13.00 USD 1,207 calls",
        "Saved by caching 1.62 USD 24.9 % of input is cached",
        "Wasted 0.04 USD 3 answers not finished",
        "Estimated 0.05 USD 301 calls without usage",
    ):
        assert figure in shown
    first, second = rows(html)
    assert first.startswith("nobody-knows openai 0 USD 0 % 2 7 0")
    assert "no price for 2 calls" in first
    assert second.startswith("gpt-5.2 openai 13.00 USD 100 % 1,205 1,200 40 25 % 1.62 USD 0.04 USD")
    assert "25 % of calls estimated" in second


def test_amounts_beside_each_other_have_the_same_decimals(log_in: Any, production: str) -> None:
    """Tiles had 13.00, 0.051 and 0.027331 USD."""
    put_day(today(), micro_usd=27_331, wasted=1, wasted_micro_usd=1_960, estimated=1, estimated_micro_usd=90)
    html = page(log_in)
    for figure in ("This month 0.027 USD", "Wasted 0.002 USD", "Estimated < 0.001 USD"):
        assert figure in text_of(html)
    put_day(today(), model="large", micro_usd=13_000_000)
    html = page(log_in)
    for figure in ("This month 13.03 USD", "Wasted < 0.01 USD", "Estimated < 0.01 USD"):
        assert figure in text_of(html)
    assert [row.split(" USD")[0] for row in rows(html)] == ["large openai 13.00", "gpt-5.2 openai 0.03"]


def test_caching_without_a_lower_price_saves_an_unknown_sum(log_in: Any, production: str) -> None:
    """ "0 USD" stood there as a fact: without a price of cached input, that of all input applies."""
    put_day(today(), calls=4, fresh=100, cached=300, micro_usd=5_000_000)
    html = page(log_in)
    assert "Saved by caching unknown 75 % of input is cached, at no lower price" in text_of(html)
    assert rows(html)[0].endswith("75 % no lower price")
    put_day(today(), model="mini", fresh=100, micro_usd=1_000_000)
    assert rows(page(log_in))[1].endswith("100 0"), "nothing was cached"


def test_the_page_says_when_a_pod_reported_last(log_in: Any, month: None) -> None:
    assert "report of a pod" not in text_of(page(log_in))
    named = {"environment": "production", "server": "shop-1", "number": 3}
    now = datetime.now(UTC)
    UsageReceipt.objects.create(boot="a", at=now, **named)
    UsageReceipt.objects.create(boot="b", at=now - timedelta(minutes=1), **named)
    assert f"The last report of a pod came at {now:%H:%M:%S} UTC" in text_of(page(log_in))
    before = now - timedelta(days=3)
    UsageReceipt.objects.update(at=before)
    assert f"came at {before:%H:%M:%S} UTC on {before:%-d %B}." in text_of(page(log_in))


def test_a_link_leads_from_a_line_to_those_behind_it(log_in: Any, month: None) -> None:
    html = page(log_in, "?by=tenant")
    assert [row.split(" ")[0] for row in rows(html)] == ["acme-retail", "no", "globex"]
    (href,) = re.findall(r'href="(/costs\?[^"]*tenant=acme-retail[^"]*)"', html)
    html = log_in("vera").get(href.replace("&amp;", "&")).content.decode()
    (row,) = rows(html)
    assert row.startswith("gpt-5.2 openai 12.50 USD 100 %")
    assert "Tenant acme-retail: remove this filter" in text_of(html)
    assert "By service" not in text_of(html), "the ledger does not keep both of one call"


def test_a_registered_tenant_is_stopped_from_its_line(log_in: Any, month: None) -> None:
    put_day(today(), tenant="not registered")
    stop = "/edit/tenant?key=acme-retail&amp;own.suspended=yes"
    html = log_in("ada").get("/costs?by=tenant").content.decode()
    assert html.count("Stop tenant") == 1, "nobody registered the others"
    assert f'href="{stop}"' in html
    assert "Stop tenant" not in page(log_in, "?by=tenant"), "a viewer stops nobody"
    edits.suspend_tenant(environment="production", tenant="acme-retail", reason="Spends too much", actor=ADA)
    html = log_in("ada").get("/costs?by=tenant").content.decode()
    assert "Stop tenant" not in html
    assert "suspended" in text_of(html)


def test_lines_are_by_service_and_by_day(log_in: Any, month: None) -> None:
    (row,) = rows(page(log_in, "?by=service"))
    assert row.startswith("shop 13.00 USD 100 % 1,207")
    (row,) = rows(page(log_in, "?by=day"))
    assert row.startswith(f"{today():%-d %B} 13.00 USD")
    (row,) = rows(page(log_in, f"?by=tenant&day={today()}&model=nobody-knows"))
    assert row.startswith("globex")


def test_an_older_month_has_its_own_lines(log_in: Any, month: None) -> None:
    before = days_ago(40)
    put_day(before, tenant="initech", micro_usd=2_000_000)
    html = page(log_in, f"?by=tenant&month={before:%Y-%m}")
    (row,) = rows(html)
    assert row.startswith("initech 2.00 USD")
    assert f"{before:%B %Y}, UTC: 2.00 USD for 1 call" in text_of(html)
    assert "13.00 USD this month" in text_of(html)


def test_a_month_whose_services_are_deleted_says_so(log_in: Any, month: None, settings: Any) -> None:
    """It was "0 USD for 0 calls", while the same month cost 2 USD by tenant."""
    last = today().replace(day=1) - timedelta(days=1)
    middle = last.replace(day=15)
    put_day(last, micro_usd=2_000_000)

    def when(by: str) -> str:
        shown = text_of(page(log_in, f"?by={by}&month={last:%Y-%m}"))
        [found] = re.findall(rf"Costs by {by} (.*?), UTC: ", shown)
        return str(found)

    settings.LEDGER_KEPT_HOURS_D = (today() - middle).days + 1
    assert when("service") == f"{last:%B %Y}, stored from 15 {last:%B} on"
    settings.LEDGER_KEPT_HOURS_D = 1
    assert when("service") == f"{last:%B %Y}, no longer stored"
    assert when("tenant") == f"{last:%B %Y}"


@pytest.mark.parametrize(
    "query", ["by=pod", "month=13", "day=x", "by=service&tenant=a", "by=tenant&service=a"]
)
def test_an_address_that_makes_no_sense_shows_the_month(log_in: Any, month: None, query: str) -> None:
    assert "Costs by" in page(log_in, f"?{query}")


def test_the_file_has_every_line(log_in: Any, month: None) -> None:
    for number in range(130):
        put_day(today(), tenant=f"tenant-{number}", micro_usd=number)
    assert "There are more lines." in text_of(page(log_in, "?by=tenant"))
    answer = log_in("vera").get("/costs?by=tenant&csv=h-c")
    found = list(csv.reader(StringIO(b"".join(answer.streaming_content).decode())))
    assert found[0][:4] == ["Tenant", "Cost", "Share", "Calls"]
    assert len(found) == 1 + 133
    cheapest = next(line for line in found if line[0] == "tenant-17")
    assert cheapest[1] == "0.000017", "numbers in USD, which a sheet can sum"
    assert found[1][:2] == ["acme-retail", "12.50"]
    answer = log_in("vera").get("/costs?by=day&csv=h-c")
    days = list(csv.reader(StringIO(b"".join(answer.streaming_content).decode())))
    assert days[1][0] == str(today()), "a day of a file has its year"


def test_the_overview_leads_to_the_tenant_that_spends_most(log_in: Any, month: None) -> None:
    forget()
    html = log_in("vera").get("/").content.decode()
    assert "Calls to models cost 13.00 USD today." in text_of(html)
    assert '<a href="/costs?by=tenant">' in html


def test_the_overview_says_nothing_of_models_that_are_not_used(log_in: Any, production: str) -> None:
    forget()
    assert "Calls to models" not in text_of(log_in("vera").get("/").content.decode())


@pytest.mark.parametrize("other", ["tenant=acme-retail", "service=shop"])
def test_a_model_of_one_tenant_or_service_is_listed_by_day(log_in: Any, month: None, other: str) -> None:
    html = page(log_in, f"?model=gpt-5.2&{other}&by=day")
    assert len(rows(html)) == 1
    assert f"by=model&amp;day={today()}" in html


def test_a_month_at_the_end_of_the_calendar_has_no_line(log_in: Any, month: None) -> None:
    assert rows(page(log_in, "?month=9999-12&by=service")) == []


def test_models_without_a_price_are_watched_once_a_model_has_one(month: None) -> None:
    put_hour(datetime.now(UTC), model="nobody-knows", unpriced=2)
    assert _spending("production")["unpriced"] == ()
    edits.set_model(
        environment="production",
        model="gpt-5.2",
        prices={"2025-12-01": {"input": 1, "output": 2}},
        expected_version=0,
        actor=ADA,
        reason="for a test",
    )
    assert [one.model for one in _spending("production")["unpriced"]] == ["nobody-knows"]
