"""Models and prices as people use them: added, priced from a date, changed and removed."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.spending.models import Model, Price
from fuseboard.contract.money import micro_usd_of, usd_digits
from tests.controlplane.ledger.ledger_rows import days_ago, put_day, today
from tests.dashboard.editor_steps import page

pytestmark = pytest.mark.django_db(transaction=True)

WHY = {"reason": "New price list of the vendor"}
WHERE = "/models/of/gpt-5.2"


def new(**more: str) -> dict[str, str]:
    return (
        {"name": "gpt-5.2", "pool": "payments-api", "aliases": "large\r\n\r\n models/gpt \r\n"} | WHY | more
    )


def version() -> str:
    return str(Model.objects.get().version)


def moment(days: int) -> str:
    return (timezone.now() + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M")


def test_the_list_says_who_uses_a_model(log_in: Any) -> None:
    client = log_in("ada")
    client.post("/models/new", new())
    client.post("/models/new", new(name="unused", aliases=""))
    for tenant, cost in (("acme-retail", 3_000_000), ("globex", 9_000_000), ("initech", 0), ("", 500_000)):
        put_day(today(), tenant=tenant, micro_usd=cost)
    put_day(days_ago(40), tenant="umbrella", micro_usd=7)
    shown = page(client.get("/models"))
    assert "12.50 USD" in shown
    assert '<a href="/costs?by=tenant&amp;model=gpt-5.2">globex, acme-retail and 1 more</a>' in shown
    assert "no calls" in shown


def test_a_model_is_added_priced_changed_and_removed(log_in: Any) -> None:
    client = log_in("ada")
    assert "No models yet" in page(client.get("/models"))
    said = page(client.post("/models/new", new(name="a b", input="x", reason="no")), 422)
    assert "Enter USD with at most 6 decimals" in said
    assert "Enter the name that requests have" in page(client.post("/models/new", new(name="")), 422)
    assert "Use 1 to 64 letters" in page(client.post("/models/new", new(name="a b")), 422)
    assert "Use 1 to 64 letters" in page(client.post("/models/new", new(name="vendor/gpt")), 422)
    assert "A new price needs this" in page(client.post("/models/new", new(input="2.50")), 422)
    answer = client.post("/models/new", new(input="2.50", cached="0.25", output="10"))
    assert answer["Location"].startswith(f"{WHERE}?saved=")
    model = Model.objects.get()
    assert (model.aliases, model.pool) == (["large", "models/gpt"], "payments-api")
    price = Price.objects.get()
    assert (price.input, price.cached, price.written, price.output) == (
        2_500_000,
        250_000,
        2_500_000,
        10_000_000,
    )
    # Without a start, it applies from this minute on.
    assert timezone.now() - timedelta(minutes=5) < price.starts_at <= timezone.now()
    assert "already exists" in page(client.post("/models/new", new()), 422)
    shown = page(client.get(answer["Location"]))
    assert "Undo" in shown
    assert "0.25" in shown

    add = {"act": "price", "version": version(), "starts_at": moment(3), **WHY}
    assert "Enter USD" in page(client.post(WHERE, add), 422)
    add |= {"input": "2", "output": "8.000001"}
    assert client.post(WHERE, add).status_code == 302
    assert "ada saved gpt-5.2 while you were editing" in page(client.post(WHERE, add), 409)
    assert "Only one price can begin" in page(
        client.post(WHERE, add | {"version": version(), "starts_at": moment(5)}), 422
    )
    assert "8.000001 from" in page(client.get("/models"))
    shown = page(client.get(WHERE))
    assert "to come" in shown
    start = f"{Price.objects.order_by('starts_at').last().starts_at:%Y-%m-%dT%H:%MZ}"  # type: ignore[union-attr]
    assert (
        client.post(WHERE, {"act": "unprice", "start": start, "version": version(), **WHY}).status_code == 302
    )
    assert Price.objects.count() == 1
    begun = {"act": "unprice", "start": f"{price.starts_at:%Y-%m-%dT%H:%MZ}", "version": version(), **WHY}
    assert "This price has begun" in page(client.post(WHERE, begun), 422)

    names = {"act": "names", "pool": "", "aliases": "", "version": version(), **WHY}
    assert "There is no dependency" in page(client.post(WHERE, names | {"pool": "none"}), 422)
    assert client.post(WHERE, names).status_code == 302
    model.refresh_from_db()
    assert (model.aliases, model.pool) == ([], "")
    assert "at least 8 characters" in page(
        client.post(WHERE, {"act": "remove", "version": version(), "reason": ""}), 422
    )
    assert client.post(WHERE, {"act": "remove", "version": version(), **WHY}).status_code == 302
    assert not Model.objects.exists()
    assert client.get(WHERE).status_code == 404


def test_models_without_a_price_come_first(log_in: Any) -> None:
    client = log_in("ada")
    client.post("/models/new", new(name="a-priced", aliases="", input="1", output="1"))
    client.post("/models/new", new(name="z-later", aliases="", input="1", output="1", starts_at=moment(2)))
    client.post("/models/new", new(name="z-unpriced", aliases="", pool=""))
    shown = page(client.get("/models"))
    assert "2 models without a price" in shown
    assert shown.index(">z-later<") < shown.index(">z-unpriced<") < shown.index(">a-priced<")
    assert "No price applies" in page(client.get("/models/of/z-later"))


def test_viewers_see_models_and_change_none(log_in: Any) -> None:
    log_in("ada").post("/models/new", new())
    client = log_in("vera")
    assert "gpt-5.2" in page(client.get("/models"))
    shown = page(client.get(WHERE))
    assert "Add a price" not in shown
    assert client.post(WHERE, {"act": "remove", "version": "1", **WHY}).status_code == 403
    assert client.post("/models/new", new(name="other")).status_code == 403


def test_a_change_names_the_price_in_usd(log_in: Any) -> None:
    client = log_in("ada")
    where = client.post("/models/new", new(input="2.5", output="10", starts_at="2026-01-01T00:00"))[
        "Location"
    ]
    revision = where.partition("saved=")[2].partition("&")[0]
    shown = page(client.get(f"/revisions/{revision}"))
    assert "Price from 2026-01-01, input" in shown
    assert "2.50 USD per million tokens" in shown.replace("<wbr>", "")


def test_the_audit_names_the_prices_of_a_model_in_usd(log_in: Any) -> None:
    """It had ``prices.2026-01-01T08:30Z.input 2,500,000``."""
    client = log_in("ada")
    client.post("/models/new", new(input="2.5", output="10", starts_at="2026-01-01T08:30"))
    shown = page(client.get("/audit")).replace("<wbr>", "")
    assert "price from 2026-01-01 08:30 UTC, input 2.50 USD per million tokens" in shown
    assert "price from 2026-01-01 08:30 UTC, output 10.00 USD per million tokens" in shown
    assert "2,500,000" not in shown


@pytest.mark.parametrize(
    ("text", "micro", "shown"),
    [
        ("3", 3_000_000, "3.00"),
        ("$0.15", 150_000, "0.15"),
        (" 0.0755 ", 75_500, "0.0755"),
        ("1,000.5", 1_000_500_000, "1,000.50"),
        ("0", 0, "0.00"),
        ("0.000001", 1, "0.000001"),
    ],
)
def test_a_price_is_read_and_written_exactly(text: str, micro: int, shown: str) -> None:
    assert micro_usd_of(text) == micro
    assert usd_digits(micro) == shown


@pytest.mark.parametrize("text", ["", "-1", "1.0000001", "1e3", "NaN", "٣", "1.2.3", "9" * 11])
def test_a_wrong_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Enter USD"):
        micro_usd_of(text)
