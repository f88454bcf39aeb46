"""What the ledger says of a month: its lines, its sums, what is projected, and what is unusual."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.ledger.reading import (
    MIN_JUMP_MICRO_USD,
    Wanted,
    month_of,
    read_costs,
    read_jump,
    read_months,
    read_spent_today,
    read_summary,
    read_unpriced,
)
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.ledger.ledger_rows import put_day, put_hour, today

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 11, 12, 30, tzinfo=UTC)
DAY = NOW.date()
HOUR = NOW.replace(minute=0)


def lines(
    by: str, since: date = DAY, until: date = DAY, most: int = 10, **only: str
) -> list[tuple[str, int]]:
    wanted = Wanted(by=by, since=since, until=until, **only)
    return [(line.name, line.micro_usd) for line in read_costs("production", wanted, most=most).lines]


def test_what_every_view_reads_takes_one_row_of_each_day() -> None:
    for number in range(40):
        put_day(DAY, tenant=f"tenant-{number}", micro_usd=5)
    with CaptureQueriesContext(connection) as captured:
        assert read_spent_today("production", NOW) == 200
        assert read_summary("production", NOW).month.calls == 40
        assert read_months("production") == [DAY.replace(day=1)]
    read = " ".join(query["sql"] for query in captured.captured_queries)
    assert "ledger_usagetotal" in read
    assert "ledger_usageday" not in read


def test_lines_are_by_model_tenant_service_or_day_the_most_expensive_first() -> None:
    yesterday = DAY - timedelta(days=1)
    put_day(DAY, tenant="acme", micro_usd=5)
    put_day(DAY, tenant="globex", micro_usd=7)
    put_day(DAY, tenant="globex", model="small", micro_usd=1, output=9)
    put_day(yesterday, tenant="acme", micro_usd=100)
    put_day(DAY, tenant="acme", environment="staging", micro_usd=9)
    put_hour(NOW, service="shop", micro_usd=9)
    put_hour(NOW, service="search", micro_usd=4)
    put_hour(NOW - timedelta(days=1), service="shop", model="small", micro_usd=2)
    assert lines("model") == [("gpt-5.2", 12), ("small", 1)]
    assert lines("tenant") == [("globex", 8), ("acme", 5)]
    assert lines("tenant", model="small") == [("globex", 1)]
    assert lines("day", since=yesterday) == [(str(DAY), 13), (str(yesterday), 100)]
    assert lines("day", since=yesterday, tenant="acme") == [(str(DAY), 5), (str(yesterday), 100)]
    assert lines("service") == [("shop", 9), ("search", 4)]
    assert lines("model", since=yesterday, service="shop") == [("gpt-5.2", 9), ("small", 2)]
    assert lines("day", since=yesterday, service="shop") == [(str(DAY), 9), (str(yesterday), 2)]
    found = read_costs("production", Wanted(by="tenant", since=DAY, until=DAY), most=1)
    assert (found.cut, len(found.lines), found.total.micro_usd, found.total.calls) == (True, 1, 13, 3)


def test_models_without_a_price_come_first() -> None:
    put_day(DAY, model="dear", micro_usd=500)
    put_day(DAY, model="unknown", unpriced=1)
    put_day(DAY, model="cheap", micro_usd=1)
    assert [name for name, _ in lines("model")] == ["unknown", "dear", "cheap"]


def test_a_tenant_and_a_service_cannot_be_asked_together() -> None:
    for wrong in ({"by": "service", "tenant": "acme"}, {"by": "tenant", "service": "shop"}, {"by": "pod"}):
        with pytest.raises(ValueError, match="Choose"):
            Wanted(**{"since": DAY, "until": DAY, **wrong})  # type: ignore[arg-type]


def test_the_summary_projects_the_mean_of_the_last_whole_days() -> None:
    assert read_summary("production", NOW).projected is None
    put_day(DAY, micro_usd=1_000_000)
    assert read_summary("production", NOW).projected is None, "no whole day is known"
    put_day(DAY - timedelta(days=2), micro_usd=6_000_000)
    found = read_summary("production", NOW)
    assert (found.month.micro_usd, found.today.micro_usd) == (7_000_000, 1_000_000)
    # 3 USD a day for 19 days and 11.5 h.
    assert found.projected == 7_000_000 + round(3_000_000 * (19 + 11.5 / 24))
    put_day(DAY - timedelta(days=30), micro_usd=900_000_000)
    found = read_summary("production", NOW)
    # Of the last 7 days, which the ledger knows now, 6 cost nothing.
    assert found.projected == 7_000_000 + round(6_000_000 / 7 * (19 + 11.5 / 24))
    assert read_spent_today("production", NOW) == 1_000_000
    assert read_spent_today("production", NOW + timedelta(days=1)) is None
    assert read_summary("staging", NOW).month.calls == 0


def test_months_have_their_days() -> None:
    assert month_of(date(2028, 2, 17)) == (date(2028, 2, 1), date(2028, 2, 29))
    assert month_of(date(2026, 12, 31)) == (date(2026, 12, 1), date(2026, 12, 31))


def test_the_last_month_and_day_can_be_asked_for() -> None:
    assert month_of(date(9999, 12, 1)) == (date(9999, 12, 1), date.max)
    put_hour(NOW, micro_usd=4)
    assert lines("service", until=date.max) == [("shop", 4)]


def test_models_without_a_price_are_named_while_they_are_called() -> None:
    put_hour(NOW, service="a", unpriced=2)
    put_hour(NOW - timedelta(hours=1), service="b", unpriced=3)
    put_hour(NOW, model="priced", micro_usd=4)
    put_hour(NOW - timedelta(hours=2), model="old", unpriced=9)
    found = [(one.model, one.dependency, one.calls) for one in read_unpriced("production", NOW)]
    assert found == [("gpt-5.2", "openai", 5)]


def test_an_hour_is_compared_with_the_same_hour_of_four_weeks() -> None:
    assert read_jump("production", NOW) is None
    put_hour(NOW, micro_usd=40_000_000)
    assert read_jump("production", NOW) is None, "nothing is usual in the first week"
    for week, cost in enumerate((10, 20, 0, 10), 1):
        if cost:
            put_hour(NOW - timedelta(weeks=week), micro_usd=cost * 1_000_000)
    put_hour(NOW - timedelta(weeks=1, hours=5), micro_usd=900_000_000)
    put_hour(NOW, model="small", service="b", micro_usd=2_000_000)
    found = read_jump("production", NOW)
    assert found is not None
    assert (found.at, found.model) == (HOUR.timestamp(), "gpt-5.2")
    assert (found.micro_usd, found.usual_micro_usd) == (42_000_000, 10_000_000)
    assert found.times == pytest.approx(4.2)
    # The hour before is over, and was still more unusual.
    put_hour(NOW - timedelta(hours=1), micro_usd=60_000_000)
    found = read_jump("production", NOW)
    assert found is not None
    assert (found.at, found.usual_micro_usd) == ((HOUR - timedelta(hours=1)).timestamp(), 0)


def test_a_few_dollars_are_never_unusual() -> None:
    put_hour(NOW - timedelta(weeks=2), micro_usd=1)
    put_hour(NOW, micro_usd=MIN_JUMP_MICRO_USD)
    found = read_jump("production", NOW)
    assert found is not None
    assert found.times == pytest.approx(3.0)


@pytest.mark.django_db(transaction=True)
def test_the_api_has_the_figures_of_the_page(production: str) -> None:
    put_day(today(), tenant="acme", micro_usd=5, cached=3, fresh=1)
    put_day(today(), tenant="globex", micro_usd=7, unpriced=1)
    put_hour(datetime.now(UTC), micro_usd=12)
    token = token_of("viewer")
    found = send(token, "GET", f"{API}/costs?by=tenant").json()
    assert [(line["name"], line["micro_usd"]) for line in found["lines"]] == [("globex", 7), ("acme", 5)]
    assert (found["by"], found["cut"], found["projected_micro_usd"]) == ("tenant", False, None)
    assert found["total"]["micro_usd"] == found["month"]["micro_usd"] == found["today"]["micro_usd"] == 12
    (one,) = send(token, "GET", f"{API}/costs?tenant=acme&since={today()}&until={today()}").json()["lines"]
    assert (one["name"], one["dependency"], one["cached"], one["calls"]) == ("gpt-5.2", "openai", 3, 1)
    (one,) = send(token, "GET", f"{API}/costs?by=service").json()["lines"]
    assert (one["name"], one["micro_usd"]) == ("shop", 12)
    for wrong, field in (
        ("by=tenant&service=shop", "service"),
        ("since=2026-02-02&until=2026-02-01", "since"),
        ("by=pod", "by"),
    ):
        answer = send(token, "GET", f"{API}/costs?{wrong}")
        assert answer.status_code == 422, wrong
        assert field in answer.content.decode()
