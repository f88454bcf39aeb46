"""The past that the demo makes up: charts have something to draw, and say that it is made up."""

from datetime import UTC, datetime, timedelta
from time import process_time
from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.ledger.invoices import read_drifts
from controlplane.series import sealing
from controlplane.series.kinds import DEPENDENCY, FLEET, POD
from controlplane.series.models import Entity
from controlplane.series.reading import read
from controlplane.suggestions.edits import look_for_suggestions, present_suggestions
from tests.people import ADA
from tools.demo.past import make_up, suggest
from tools.demo.past_costs import make_up_costs

NOW = datetime(2026, 5, 4, 13, 20, 5, tzinfo=UTC)


@pytest.mark.django_db(transaction=True)
def test_every_range_has_figures_that_are_labelled_as_made_up() -> None:
    began = process_time()
    assert make_up("production", NOW) > 2
    assert process_time() - began < 60
    assert make_up("production", NOW) == 0
    for hours in (1, 6, 24, 24 * 30):
        answer = read(
            "production", FLEET, fields=["requests"], start=NOW - timedelta(hours=hours), end=NOW, now=NOW
        )
        known = sum(bool(seconds) for seconds in answer.known_s)
        assert known >= 0.95 * len(answer.known_s), hours
        assert sum(value or 0 for value in answer.fields["requests"]) > 0
        assert answer.made_up_until == int(NOW.timestamp()) - 5
    hour: Any = {"start": NOW - timedelta(hours=1), "end": NOW, "now": NOW}
    pod = read("production", POD, "shop-1", fields=["requests", "cpu"], **hour)
    assert sum(value or 0 for value in pod.fields["requests"]) > 0
    assert 0 < max(value or 0 for value in pod.fields["cpu"]) < 100, "thousandths of a core"
    later: Any = {"fields": ["requests"], "start": NOW, "end": NOW + timedelta(hours=1)}
    assert read("production", FLEET, **later, now=NOW + timedelta(hours=1)).made_up_until is None


@pytest.mark.django_db(transaction=True)
def test_the_hour_in_which_the_demo_starts_is_sealed_like_any_other() -> None:
    make_up("production", NOW)
    name = Entity.objects.filter(kind=DEPENDENCY.number).order_by("id")[0].name
    range_: Any = {
        "fields": ["ok"],
        "start": NOW - timedelta(hours=2),
        "end": NOW,
        "now": NOW + timedelta(hours=4),
    }
    before = read("production", DEPENDENCY, name, **range_)
    assert sealing.seal(NOW + timedelta(hours=4))
    assert read("production", DEPENDENCY, name, **range_) == before


@pytest.mark.django_db(transaction=True)
def test_a_suggestion_is_labelled_as_made_up_and_ends_by_itself() -> None:
    why: Any = {"environment": "production", "reason": "for a test", "actor": ADA}
    edits.create_environment(**why)
    edits.create_dependency(dependency="payments-api", kind="external", **why)
    edits.set_vendor_limit(
        dependency="payments-api", name="contract", limit=400, window_s=1, expected_version=None, **why
    )
    suggest("production", "payments-api", "contract", number=300)
    (row,) = present_suggestions("production", "payments-api")
    assert row.evidence.endswith("which the demo made up. Configured: 400 calls per 1 s.")
    look_for_suggestions(row.last_at + timedelta(minutes=59))
    assert len(present_suggestions("production", "payments-api")) == 1
    look_for_suggestions(row.last_at + timedelta(minutes=61))
    assert present_suggestions("production", "payments-api") == []


@pytest.mark.django_db(transaction=True)
def test_made_up_months_have_invoices_and_one_account_drifts() -> None:
    why: Any = {"environment": "production", "reason": "for a test", "actor": ADA}
    edits.create_environment(**why)
    for account, pool in (("openai-main", "openai"), ("anthropic-main", "anthropic")):
        edits.create_dependency(dependency=pool, kind="llm", **why)
        edits.set_account(account=account, pools=[pool], expected_version=0, **why)
    for _ in range(2):
        make_up_costs()
        found = read_drifts("production", most=9)
        assert [(one.account, one.is_whole, one.share == 0) for one in found] == [
            ("anthropic-main", True, False),
            ("openai-main", True, True),
        ] * 2
