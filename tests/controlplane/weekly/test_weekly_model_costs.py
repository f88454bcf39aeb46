"""What models cost, in three lines of the weekly summary."""

from datetime import date, timedelta

from django.db import transaction

from controlplane.weekly.model_costs import model_costs
from controlplane.weekly.summarize import summarize, week_of
from tests.controlplane.ledger.ledger_rows import put_day

BEGINS = date(2026, 5, 4)


def test_a_week_with_calls_has_three_lines(production: str) -> None:
    put_day(BEGINS, tenant="acme", micro_usd=9_000_000, calls=3, saved_micro_usd=2_000_000)
    put_day(BEGINS + timedelta(days=6), tenant="stranger", micro_usd=1_000_000, wasted_micro_usd=500_000)
    put_day(BEGINS, tenant="acme", model="nobody-knows", unpriced=1)
    put_day(BEGINS - timedelta(days=7), tenant="acme", micro_usd=5_000_000)
    put_day(BEGINS + timedelta(days=7), tenant="acme", micro_usd=70_000_000)
    with transaction.atomic():
        section = summarize("production", BEGINS)[-1]
    assert section["title"] == "Costs of models"
    assert [(line["name"], line["found"], line["suggestion"]) for line in section["lines"]] == [
        (
            "All models",
            "10.00 USD for 5 calls, 5.00 USD in the week before; caching saved 2.00 USD, 0.50 USD was wasted",
            "",
        ),
        ("gpt-5.2", "the model that cost most: 10.00 USD, 100 % of all", "1 model had no price: add it."),
        ("acme", "the tenant that cost most: 9.00 USD, 90 % of all", ""),
    ]
    assert [(line["opens"], line["key"]) for line in section["lines"]] == [
        ("costs", ""),
        ("costs", ""),
        ("tenant", "acme"),
    ]


def test_the_first_week_has_no_week_before_and_no_sum_that_is_not_known(production: str) -> None:
    """ "caching saved 0 USD" stood there without a price of cached input."""
    put_day(BEGINS, tenant="acme", micro_usd=9_000_000, calls=3, fresh=1, cached=9)
    (section,) = model_costs(week_of("production", BEGINS))
    assert section.lines[0].found == "9.00 USD for 3 calls"


def test_a_tenant_that_is_not_registered_has_no_name(production: str) -> None:
    put_day(BEGINS, tenant="stranger", micro_usd=1)
    (section,) = model_costs(week_of("production", BEGINS))
    assert (section.lines[2].name, section.lines[2].key) == ("a tenant that is not registered", "")


def test_a_week_without_a_call_has_no_section(production: str) -> None:
    assert model_costs(week_of("production", BEGINS)) == ()
