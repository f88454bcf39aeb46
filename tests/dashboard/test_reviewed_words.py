"""Words that a review of pages asked for, where people read them."""

from typing import Any

import pytest

from tests.dashboard.shown import text_of

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
    ],
)
def test_a_page_has_the_words_that_reviewers_understood(
    log_in: Any, path: str, words: str, before: str
) -> None:
    shown = text_of(log_in("ada").get(path).content.decode())
    assert words in shown
    assert before not in shown
