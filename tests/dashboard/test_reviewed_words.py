"""Words that a review of pages asked for, where people read them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from browsing import becomes
from django.utils import timezone

from controlplane.breakers.models import Transition
from controlplane.policies.document import environment_of
from controlplane.policies.models import Dependency
from controlplane.series.marks import MAX_MARKS
from controlplane.status.observed import observed_rate
from tests.dashboard.fleet_rows import put_figures
from tests.dashboard.shown import text_of
from tests.dashboard.test_browser_charts import seed
from tests.dashboard.test_incident_pages import incident
from tests.dashboard.test_observe_pages import RETRIES, SHEDDING, facts

pytestmark = pytest.mark.django_db(transaction=True)

ROUTES = "/alerts/routes"
RULES = "/alerts/rules"


@pytest.mark.parametrize(
    ("path", "words", "before"),
    [
        ("/alerts", "Alerts that page people (level 2, 3) open incidents.", "Level 2 and 3 open incidents"),
        (RULES, "is resolved when the condition has been gone for a while.", "has stayed away"),
        (RULES, "No threshold.", "true or false"),
        (RULES, "Fire after, s", "Must last"),
        (RULES, "Clear after, s", "Must stay away"),
        (ROUTES, "Position in the list", "Place (empty for the last)"),
        (ROUTES, "Then notify", "with commas between"),
        ("/reconciliation", "These calls are not counted against any quota.", "Nothing is charged for it"),
        ("/budgets/new", "Incoming requests", "Requests to the service itself"),
        ("/budgets/new", "Unit to count", "Measure: calls"),
        ("/budgets", "Use of every hourly, daily, weekly or monthly limit", "Costs and budgets"),
        ("/runbooks", "built in", "of the release"),
        ("/edit/tier?key=pro", "leave empty to start now", "Typed in UTC"),
        ("/breakers/payments-api/settings", "leave empty to start now", "empty: immediately"),
        ("/edit/tier?key=pro", "Add a quota Optional", "leave the name empty to add none"),
        (
            "/explain",
            "If the tenant is not registered, type its id to verify the token.",
            "Only for a caller that is not registered",
        ),
    ],
)
def test_a_page_has_the_words_that_reviewers_understood(
    log_in: Any, path: str, words: str, before: str
) -> None:
    shown = text_of(log_in("ada").get(path).content.decode())
    assert words in shown
    assert before not in shown


def test_durations_of_calls_are_an_average_over_pods(log_in: Any) -> None:
    measured = {"callers": 2, "mean_ms": 400, "mean_pods": 2, "p95_ms": 900, "p95_pods": 2}
    put_figures(protection={"payments-api": measured})
    shown = text_of(log_in("vera").get("/breakers/payments-api").content.decode())
    assert "p95 450 ms, mean 200 ms (average over pods)" in shown
    assert "mean of the pods" not in shown


def test_a_report_says_that_no_person_was_notified(log_in: Any) -> None:
    row = incident()
    olga = log_in("olga")
    page = text_of(olga.get(f"/incidents/{row.pk}/report").content.decode())
    assert "Notified no person" in page
    assert "| Notified | no person |" in page
    assert "Detected" not in page
    assert "no message" not in page


def test_an_edit_is_listed_as_edited_and_not_as_set(log_in: Any) -> None:
    ada = log_in("ada")
    base = environment_of("production").revision
    ada.post("/edit/tier?key=pro", {"base": base, "own.title": "For shops", "reason": "for a test"})
    for path in ("/changes", "/revisions", "/audit"):
        shown = text_of(ada.get(path).content.decode())
        assert "Tier edited" in shown, path
        assert "Tier set" not in shown, path


def test_a_part_that_would_refuse_nothing_says_none_and_not_zero() -> None:
    idle = facts(SHEDDING, RETRIES)
    idle = replace(idle, servers=(), figures=replace(idle.figures, protection={}))
    assert observed_rate(idle, SHEDDING) == "It would have refused none."
    assert observed_rate(idle, RETRIES) == "They would have refused none."


@pytest.mark.browser
def test_a_chart_says_how_to_see_events_that_it_leaves_out(production: str, sign_in: Any) -> None:
    seed()
    vendor, now = Dependency.objects.get(environment=production, name="payments-api"), timezone.now()
    for number in range(MAX_MARKS + 7):
        before, after = ("closed", "open") if number % 2 == 0 else ("open", "closed")
        Transition.objects.create(
            dependency=vendor,
            generation=number + 1,
            at=now - timedelta(minutes=50) + timedelta(seconds=30 * number),
            from_state=before,
            to_state=after,
            cause="ratio",
        )
    page = sign_in("vera")
    page.goto("/breakers/payments-api")
    said = "document.querySelector('#chart-calls .chart-say')?.textContent"
    becomes(page, f"{said}?.includes('zoom in to see ')")
    assert " more events" in page.evaluate(said)
    assert "earlier mark" not in page.evaluate(said)
