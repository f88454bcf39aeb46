"""Invoices of vendors: entered, corrected and removed, with the ledger of their account beside them."""

import csv
import re
from datetime import date, timedelta
from io import StringIO
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from shown import text_of

from controlplane.alerts.people.rule_edits import RuleValues, set_rule
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.errors import InvalidEdit, NotFound
from controlplane.ledger.edits import tidy
from controlplane.ledger.invoices import Drift, months_to_enter, read_drifts, remove_invoice, set_invoice
from controlplane.ledger.models import Invoice
from controlplane.spending.models import Account
from controlplane.status import read_watched
from tests.controlplane.calling import API, problem, send, token_of
from tests.controlplane.ledger.ledger_rows import days_ago, put_day, today
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"reason": "As on the invoice of the vendor"}
PAGE = "/costs/invoices"


def last_month() -> date:
    return (today().replace(day=1) - timedelta(days=1)).replace(day=1)


def drifts() -> tuple[Drift, ...]:
    return read_drifts("production", most=100)


def watched() -> tuple[Drift, ...]:
    """The invoices that can alert, read again."""
    read_watched.forget()
    return compared_again()


def compared_again() -> tuple[Drift, ...]:
    """As a worker reads them that has compared them before."""
    return read_watched._reader._drifts_of("production")


@pytest.fixture
def common(production: str) -> dict[str, Any]:
    """An account whose pool cost 101 USD last month; other calls do not count."""
    edits.set_account(
        environment="production", account="main", pools=["payments-api"], expected_version=0, actor=ADA, **WHY
    )
    put_day(last_month() - timedelta(days=1), dependency="payments-api", micro_usd=5_000_000)
    put_day(last_month(), dependency="payments-api", micro_usd=60_000_000)
    put_day(
        last_month() + timedelta(days=27), tenant="globex", dependency="payments-api", micro_usd=41_000_000
    )
    put_day(last_month(), dependency="another", micro_usd=7_000_000)
    put_day(today(), dependency="payments-api", micro_usd=9_000_000)
    return {"environment": "production", "account": "main", "actor": ADA, **WHY}


def test_an_invoice_is_compared_with_the_ledger_of_its_pools_and_month(common: dict[str, Any]) -> None:
    set_invoice(month=last_month() + timedelta(days=3), micro_usd=100_000_000, **common)
    (one,) = drifts()
    found = (one.account, one.month, one.invoiced, one.ledger)
    assert found == ("main", last_month(), 100_000_000, 101_000_000)
    assert (one.share, one.size, one.is_whole) == (0.01, 0.01, True)
    assert watched() == (one,)
    set_invoice(month=last_month(), micro_usd=202_000_000, **common)
    (one,) = drifts()
    assert one.share == -0.5
    entry = Entry.objects.filter(action="invoice.set").latest("pk")
    assert (entry.before or {})["amount"] == 100_000_000
    assert (entry.after or {})["amount"] == 202_000_000
    remove_invoice(month=last_month(), **common)
    assert not Invoice.objects.exists()
    with pytest.raises(NotFound):
        remove_invoice(month=last_month(), **common)


def test_two_accounts_and_two_months_have_their_own_ledgers(common: dict[str, Any]) -> None:
    edits.set_account(
        environment="production", account="other", pools=["search"], expected_version=0, actor=ADA, **WHY
    )
    before = (last_month() - timedelta(days=1)).replace(day=1)
    put_day(last_month(), dependency="search", micro_usd=3_000_000)
    for account, month in (("main", last_month()), ("main", before), ("other", last_month())):
        set_invoice(**{**common, "account": account}, month=month, micro_usd=1_000_000)
    with CaptureQueriesContext(connection) as made:
        found = [(one.account, one.month, one.ledger) for one in drifts()]
    assert found == [
        ("main", last_month(), 101_000_000),
        ("other", last_month(), 3_000_000),
        ("main", before, 5_000_000),
    ]
    assert len(made) == 4, "one statement sums all months of all accounts"


def test_a_month_that_is_not_over_has_no_invoice(common: dict[str, Any]) -> None:
    with pytest.raises(InvalidEdit) as refused:
        set_invoice(month=today(), micro_usd=1, **common)
    oldest, newest = f"{months_to_enter()[-1]:%Y-%m}", f"{last_month():%Y-%m}"
    assert refused.value.errors == {"month": [f"Enter a month that is over, from {oldest} to {newest}."]}
    assert today() not in months_to_enter()


def test_only_the_last_three_months_alert(common: dict[str, Any]) -> None:
    put_day(days_ago(390), micro_usd=1)
    for month in months_to_enter()[:4]:
        set_invoice(month=month, micro_usd=1_000_000, **common)
    assert [one.month for one in watched()] == months_to_enter()[:3]
    assert len(drifts()) == 4


def test_a_correction_counts_at_once_and_a_late_call_after_ten_minutes(
    common: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum of a month reads every row of its days, so workers and pages do not make it at each look."""
    set_invoice(month=last_month(), micro_usd=1_000_000, **common)
    assert watched()[0].ledger == 101_000_000
    put_day(last_month() + timedelta(days=2), dependency="payments-api", micro_usd=1_000_000)
    assert compared_again()[0].ledger == 101_000_000
    set_invoice(month=last_month(), micro_usd=2_000_000, **common)
    (one,) = compared_again()
    assert (one.invoiced, one.ledger) == (2_000_000, 102_000_000)
    put_day(last_month() + timedelta(days=3), dependency="payments-api", micro_usd=1_000_000)
    monkeypatch.setattr(read_watched, "_COMPARED_AGAIN_S", 0.0)
    assert compared_again()[0].ledger == 103_000_000


def test_invoices_of_removed_accounts_and_of_deleted_days_are_not_compared(
    common: dict[str, Any], settings: Any
) -> None:
    set_invoice(month=last_month(), micro_usd=1, **common)
    assert len(watched()) == 1
    kept = settings.LEDGER_KEPT_DAYS_D
    settings.LEDGER_KEPT_DAYS_D = (today() - last_month()).days - 1
    assert drifts() == ()
    settings.LEDGER_KEPT_DAYS_D = kept
    Account.objects.all().delete()
    assert drifts() == watched() == ()


def test_an_invoice_is_deleted_with_the_days_of_its_month(common: dict[str, Any], settings: Any) -> None:
    set_invoice(month=last_month(), micro_usd=1, **common)
    tidy()
    assert Invoice.objects.count() == 1
    settings.LEDGER_KEPT_DAYS_D = (today() - last_month()).days - 1
    tidy()
    assert not Invoice.objects.exists()


def test_a_month_before_the_first_call_of_the_ledger_cannot_be_compared(
    common: dict[str, Any], log_in: Any
) -> None:
    """The ledger of a month in which Fuseboard was installed lacks its first days."""
    before = (last_month() - timedelta(days=1)).replace(day=1)
    set_invoice(month=before, micro_usd=50_000_000, **common)
    (one,) = drifts()
    first = last_month() - timedelta(days=1)
    assert (one.is_whole, one.counted_from) == (False, first)
    html = log_in("vera").get(PAGE).content.decode()
    assert f"50.00 USD 5.00 USD counted from {first:%-d %B %Y} on" in text_of(html)
    assert "st-warn" not in html.partition("<table")[2]


def test_a_vendor_rounds_to_cents(common: dict[str, Any]) -> None:
    set_invoice(month=last_month(), micro_usd=101_009_999, **common)
    assert drifts()[0].share == 0.0


def test_an_invoice_without_a_call_and_calls_without_an_invoice_differ_by_all(common: dict[str, Any]) -> None:
    set_invoice(month=last_month(), micro_usd=0, **common)
    assert drifts()[0].share == 1.0
    Account.objects.update(pools=["another", "no-calls"])
    assert drifts()[0].ledger == 7_000_000
    Account.objects.update(pools=["no-calls"])
    assert drifts()[0].share == 0.0
    set_invoice(month=last_month(), micro_usd=30_000_000, **common)
    assert (drifts()[0].ledger, drifts()[0].share) == (0, -1.0)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"micro_usd": -1}, "micro_usd"),
        ({"micro_usd": 2**53}, "micro_usd"),
        ({"month": date(2199, 1, 1)}, "month"),
        ({"month": date(1, 1, 1)}, "month"),
        ({"reason": ""}, "reason"),
    ],
)
def test_an_error_stands_at_its_field(common: dict[str, Any], wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEdit) as refused:
        set_invoice(**{**common, "month": last_month(), "micro_usd": 1} | wrong)
    assert list(refused.value.errors) == [field]
    for name in ("account", "environment"):
        with pytest.raises(NotFound):
            set_invoice(**{**common, name: "unknown", "month": last_month(), "micro_usd": 1})


def test_the_api_enters_lists_and_removes(common: dict[str, Any]) -> None:
    admin, path = token_of("admin"), f"{API}/costs/invoices"
    at = f"{path}/main/{last_month():%Y-%m}"
    assert send(admin, "PUT", at, {"micro_usd": 100_000_000, **WHY}).status_code == 200
    for _ in range(2):
        again = send(admin, "PUT", at, {"micro_usd": 100_000_000, **WHY}, **{"Idempotency-Key": "once"})
        assert again.json()["invoices"][0]["invoiced"] == 100_000_000
    assert Entry.objects.filter(action="invoice.set").count() == 2
    (one,) = send(token_of("viewer"), "GET", path).json()["invoices"]
    assert (one["month"], one["ledger"], one["share"]) == (str(last_month()), 101_000_000, 0.01)
    assert one["counted_from"] == str(last_month() - timedelta(days=1))
    for month in ("2026-13", "0000-01", f"{today():%Y-%m}"):
        problem(send(admin, "PUT", f"{path}/main/{month}", {"micro_usd": 1, **WHY}), 422)
    problem(send(token_of("operator"), "PUT", at, {"micro_usd": 1, **WHY}), 403)
    problem(send(token_of("operator"), "DELETE", f"{at}?reason=entered+for+the+wrong+month"), 403)
    assert send(admin, "DELETE", f"{at}?reason=entered+for+the+wrong+month").json() == {"invoices": []}


def test_the_page_shows_the_drift_and_saves_corrects_and_removes_an_invoice(
    common: dict[str, Any], log_in: Any
) -> None:
    client = log_in("ada")
    assert "No invoice yet. Enter what a vendor charged" in text_of(client.get(PAGE).content.decode())
    month = f"{last_month():%Y-%m}"
    typed = {"act": "save", "account": "main", "month": month, "amount": "$50.00", **WHY}
    shown = text_of(client.post(PAGE, typed, follow=True).content.decode())
    assert f"The invoice of main for {last_month():%B %Y} is saved." in shown
    assert f"main {last_month():%B %Y} 50.00 USD 101.00 USD 102 % above" in shown
    assert "1 invoice differs from the ledger." in shown

    html = client.get(f"{PAGE}?account=main&month={month}").content.decode()
    assert f"Correct the invoice of main for {last_month():%B %Y}" in text_of(html)
    assert 'name="amount" value="50.00"' in html
    assert "Remove invoice" in html
    shown = text_of(
        client.post(
            f"{PAGE}?account=main&month={month}", typed | {"amount": "101"}, follow=True
        ).content.decode()
    )
    assert "101.00 USD 101.00 USD 0 %" in shown
    assert "differ" not in shown.partition("Invoices and the ledger")[0]
    audit = text_of(client.get("/audit").content.decode().replace("<wbr>", ""))
    assert "Invoice entered main amount 50.00 USD → amount 101.00 USD" in audit
    gone = client.post(PAGE, {"act": "remove", "account": "main", "month": month, **WHY}, follow=True)
    assert f"The invoice of main for {last_month():%B %Y} is removed." in text_of(gone.content.decode())
    assert not Invoice.objects.exists()
    assert client.post(PAGE, {"act": "remove", "account": "main", "month": month, **WHY}).status_code == 404


def test_the_form_reports_all_errors_at_once_and_keeps_what_was_typed(
    common: dict[str, Any], log_in: Any
) -> None:
    client = log_in("ada")
    for amount in ("", "x", "-1", "1e3", "nan", "1.2345678", "٣", "9999999999"):
        sent = {"act": "save", "account": "", "month": "May", "amount": amount, "reason": "no"}
        refused = client.post(PAGE, sent)
        html = refused.content.decode()
        assert refused.status_code == 422
        for field in ("account", "month", "amount", "reason"):
            assert re.search(rf'id="i-{field}"[^>]*aria-invalid="true"', html), (amount, field)
        assert f'name="amount" value="{amount}"' in html
    unknown = {"act": "save", "account": "unknown", "month": f"{last_month():%Y-%m}", "amount": "1", **WHY}
    assert client.post(PAGE, unknown).status_code == 404
    assert client.post(PAGE, {"act": "other", **WHY}).status_code == 422
    assert not Invoice.objects.exists()


def test_a_viewer_reads_invoices_and_the_file_has_them(common: dict[str, Any], log_in: Any) -> None:
    set_invoice(month=last_month(), micro_usd=1_250_000_000, **common)
    viewer = log_in("vera")
    html = viewer.get(PAGE).content.decode()
    for word in ("Save invoice", "Enter an invoice", "Correct"):
        assert word not in html
    answer = viewer.get(f"{PAGE}?csv=h-i")
    lines = list(csv.reader(StringIO(b"".join(answer).decode())))
    assert lines == [
        ["Account", "Month", "Invoice", "Ledger", "Drift"],
        ["main", f"{last_month():%Y-%m}", "1250.00", "101.00", "91.9 % below"],
    ]
    admin = b"".join(log_in("ada").get(f"{PAGE}?csv=h-i")).decode()
    assert list(csv.reader(StringIO(admin)))[1][:5] == lines[1]


def test_the_page_marks_what_the_alert_of_the_environment_is_about(
    common: dict[str, Any], log_in: Any
) -> None:
    set_invoice(month=last_month(), micro_usd=100_000_000, **common)
    client = log_in("vera")
    assert "A drift of more than 1 % is marked" in text_of(client.get(PAGE).content.decode())
    assert "differs from the ledger" not in text_of(client.get(PAGE).content.decode())
    set_rule(
        environment="production",
        rule="drift",
        values=RuleValues(warning=0.5),
        actor=ADA,
        reason="Strict books",
    )
    shown = text_of(client.get(PAGE).content.decode())
    assert "A drift of more than 0.5 % is marked" in shown
    assert "1 invoice differs from the ledger." in shown


def test_an_environment_without_an_account_is_led_to_accounts(production: str, log_in: Any) -> None:
    html = log_in("ada").get(PAGE).content.decode()
    assert "No account yet. Add one with the dependencies" in text_of(html)
    assert "Save invoice" not in html
