"""The page that prices past calls of a model again: the sums first, then the correction."""

from datetime import UTC, datetime
from typing import Any

import pytest
from shown import text_of

from controlplane.editing import edits
from controlplane.ledger.models import UsageDay
from controlplane.spending.models import Budget, Model
from dashboard.views.limits import repricing
from tests.controlplane.ledger.ledger_rows import days_ago, put_day, put_hour, today
from tests.controlplane.repricing.books import revisions_are_older
from tests.dashboard.editor_steps import page
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

WHERE = "/models/of/gpt-5.2/reprice"
REASON = "The price list was misread"
WHY: dict[str, Any] = {"environment": "production", "reason": REASON, "actor": ADA, "expected_version": 0}


@pytest.fixture(autouse=True)
def priced(production: str, limits: Any) -> None:
    """A million tokens of today cost 1 USD, and count in the budget of an account."""
    price = {"2025-12-01": {"input": 1_000_000, "output": 5_000_000, "batch_percent": 50}}
    edits.set_model(model="gpt-5.2", prices=price, **WHY)
    edits.set_account(account="main", pools=["payments-api"], hosts=[], **WHY)
    # All is older than its period, so the budget has all calls of it.
    revisions_are_older()
    Budget.objects.create(
        environment_id="production", name="main-day", account="main", amount=9_000_000, period="day"
    )
    put_hour(datetime.now(UTC), dependency="payments-api", fresh=1_000_000, micro_usd=1_000_000)
    put_day(today(), fresh=1_000_000, micro_usd=1_000_000)


def typed(act: str, **more: str) -> dict[str, str]:
    days = {"since": str(today()), "until": str(today()), "version": str(Model.objects.get().version)}
    return {"act": act, **days, "input": "2", "output": "10", "cached": "", "written": "", **more}


def hidden(shown: str, name: str) -> str:
    return shown.partition(f'name="{name}" value="')[2].partition('"')[0]


def test_the_sums_are_shown_before_they_are_changed(log_in: Any) -> None:
    client = log_in("ada")
    assert f'href="{WHERE}"' in page(client.get("/models/of/gpt-5.2"))
    begins = page(client.get(WHERE))
    assert 'value="1.00"' in begins, "the present price"
    assert "Re-price calls</button>" not in begins, "first the preview"
    shown = page(client.post(WHERE, typed("preview")))
    words = text_of(shown)
    assert "Ledger 1 call, 1,000,000 tokens 1.00 USD 2.00 USD +1.00 USD" in words
    assert "Budget main-day +1.00 USD" in words
    assert "At most 1 call in a batch had another price at that time." in words
    assert "A budget that this spends refuses or degrades calls" in words
    assert UsageDay.objects.get().micro_usd == 1_000_000

    seen = {"previewed": hidden(shown, "previewed"), "reason": REASON}
    assert "Say why" in page(client.post(WHERE, typed("reprice", **seen | {"reason": ""})), 422)
    # Other values than those of the preview have their own first.
    other = page(client.post(WHERE, typed("reprice", **seen | {"input": "3"})))
    assert "3.00 USD" in other
    assert UsageDay.objects.get().micro_usd == 1_000_000
    answer = client.post(WHERE, typed("reprice", **seen), follow=True)
    assert "These calls of gpt-5.2 cost 2.00 USD now, instead of 1.00 USD." in text_of(page(answer))
    assert UsageDay.objects.get().micro_usd == 2_000_000
    audit = text_of(page(client.get("/changes?tab=audit")))
    assert "Calls re-priced" in audit


def test_a_model_that_was_saved_meanwhile_is_looked_at_again(log_in: Any) -> None:
    client = log_in("ada")
    sent = typed("reprice", reason=REASON)
    sent["previewed"] = hidden(page(client.post(WHERE, sent | {"act": "preview"})), "previewed")
    edits.set_model(model="gpt-5.2", aliases=["large"], **WHY | {"expected_version": int(sent["version"])})
    shown = page(client.post(WHERE, sent), 409)
    assert "ada saved gpt-5.2 while you were editing." in shown
    assert "Look at the price again, then preview" in shown
    assert hidden(shown, "version") == str(Model.objects.get().version)
    assert UsageDay.objects.get().micro_usd == 1_000_000


def test_the_largest_budgets_are_listed_and_the_others_are_one_line(
    log_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tenant can have a budget of its own."""
    monkeypatch.setattr(repricing, "_SHOWN", 1)
    for name, owner in (
        ("pool-day", {"dependency": "payments-api"}),
        ("acme-day", {"tenant": "acme-retail"}),
    ):
        Budget.objects.create(environment_id="production", name=name, amount=9_000_000, period="day", **owner)
    put_day(today(), dependency="search", fresh=8_000_000, micro_usd=8_000_000)
    words = text_of(page(log_in("ada").post(WHERE, typed("preview"))))
    assert "Budget acme-day +9.00 USD 2 other budgets +2.00 USD" in words


def test_a_preview_without_a_budget_says_so(log_in: Any) -> None:
    Budget.objects.all().delete()
    words = text_of(page(log_in("ada").post(WHERE, typed("preview"))))
    assert "No budget changes: none has counted these calls in its present period." in words
    assert "A budget that" not in words


def test_days_without_calls_offer_nothing_to_re_price(log_in: Any) -> None:
    shown = page(log_in("ada").post(WHERE, typed("preview", since=str(days_ago(2)), until=str(days_ago(2)))))
    assert "The ledger has no calls to gpt-5.2 in these days: there is nothing to re-price." in text_of(shown)
    assert "Re-price calls</button>" not in shown
    assert "<table" not in shown


def test_what_is_wrong_stands_at_its_field(log_in: Any) -> None:
    client = log_in("ada")
    both = page(client.post(WHERE, typed("preview", since="last week", until="today")), 422)
    assert both.count("Enter a day, such as") == 2
    assert "Enter USD with at most 6 decimals" in page(client.post(WHERE, typed("preview", input="x")), 422)
    assert "Enter a day, such as" in page(client.post(WHERE, typed("preview", since="last week")), 422)
    assert "Enter a day that has begun" in page(client.post(WHERE, typed("preview", until="2199-01-01")), 422)
    assert client.get("/models/of/unknown/reprice").status_code == 404
    assert log_in("vera").get(WHERE).status_code == 403
