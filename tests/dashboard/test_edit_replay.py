"""The replay of an edit: what the last days would have been with what was typed."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.one_at_a_time import alone
from controlplane.usage.demand_spans import SPAN_S, spans_of
from tests.dashboard.editor_steps import WHY, head, page, put_demand, quota
from tests.dashboard.shown import text_of
from tests.people import BOB

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada(log_in: Any, production: str) -> Any:
    quota()
    return log_in("ada")


def test_one_replay_of_a_person_runs_at_a_time(ada: Any) -> None:
    typed = {"base": head(), "limit.requests.limit": "900"}
    preview = page(ada.post("/edit/tier/preview?key=pro", typed))
    assert 'hx-post="/edit/tier/replay?key=pro"' in preview
    assert "Effect unknown" not in preview
    assert "Effect unknown" in page(ada.post("/edit/tier/replay?key=pro", typed))
    with alone("user:ada"):
        busy = page(ada.post("/edit/tier/replay?key=pro", typed))
    assert "An earlier replay still runs" in busy
    assert "load delay:2s" in busy
    title = page(ada.post("/edit/tier/preview?key=pro", {"base": head(), "own.title": "Pro"}))
    assert "/edit/tier/replay" not in title


def test_the_replay_has_a_chart_of_demand_and_of_the_limit_before_and_after(ada: Any) -> None:
    put_demand()
    typed = {"base": head(), "limit.requests.limit": "900", "reason": WHY}
    shown = page(ada.post("/edit/tenant/replay?key=acme-retail", typed))
    assert (
        'aria-label="Demand of the last 7 days: at most 1,500 requests in a minute.'
        ' Limit before: 600 per min, after: 900 per min."' in shown
    )
    assert [shown.count(f'<path class="{css}"') for css in ("demand", "before", "after")] == [1, 1, 1]
    assert "limit before" in text_of(shown)
    # The tier lets 600 per minute through, with a burst of 100; the edit 900.
    assert "429s: at least 8,900 before, at least 5,900 after, of 15,000 requests." in text_of(shown)
    assert "bursts within a minute cause more 429s" in text_of(shown)
    assert "other tenants:" in text_of(shown)
    # Ten minutes are no week.
    assert "Too little is known to decide by it: demand of 0.1 % of these 7 days, since " in text_of(shown)
    assert "1,620 requests per min" in text_of(shown)


def test_the_chart_of_a_tier_shows_what_all_its_tenants_get(ada: Any) -> None:
    put_demand()
    edits.create_tenant(environment="production", tenant="globex", tier="pro", reason=WHY, actor=BOB)
    put_demand("globex", 300)
    shown = page(ada.post("/edit/tier/replay?key=pro", {"base": head(), "limit.requests.limit": "900"}))
    assert "at most 1,800 requests in a minute. Refused before:" in shown
    assert "let through before" in text_of(shown)


def test_a_week_that_is_mostly_known_decides(ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.usage.what_if.MIN_COVERAGE_PERCENT", 0.01)
    put_demand()
    typed = {"base": head(), "limit.requests.limit": "900", "reason": WHY}
    shown = text_of(page(ada.post("/edit/tenant/replay?key=acme-retail", typed)))
    assert "Too little is known" not in shown
    assert "Demand is known for 0.1 % of that time." in shown


def test_the_chart_leaves_unknown_time_blank() -> None:
    found = spans_of({0: 5, 60: 9, SPAN_S * 3: 4}, {60: 7}, {60: 9, SPAN_S * 3: 4})
    assert [(span.at, span.asked, span.allowed_before) for span in found] == [(0, 9, 7), (SPAN_S * 3, 4, 0)]
