"""The pages of bulkheads, retries and rate limits: figures as pods report them, worst first."""

from typing import Any

import pytest
from django.db import OperationalError
from fleet_rows import put_figures, put_server

from controlplane.editing import edits
from controlplane.status.last_hour import BulkheadRefusals, RetriesLately, TierRefusals
from dashboard.views.fleet import overview
from tests.dashboard.shown import text_of
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

FULL = {"limit": 17, "active": 17, "queued": 9, "full_per_s": 2.5, "timed_out_per_s": 1.0}
FREE = {"limit": 25, "active": 3}
PROTECTION = {
    "search": {
        "callers": 3,
        "first_calls_per_s": 10.0,
        "tiers": {"critical": FREE, "standard": FREE, "optional": FREE},
    },
    "payments-api": {
        "callers": 3,
        "first_calls_per_s": 20.0,
        "retries_per_s": 5.0,
        "helped_per_s": 1.0,
        "no_budget_per_s": 0.5,
        "fallbacks_per_s": 2.0,
        "tiers": {"critical": FREE, "standard": FULL, "optional": FREE},
    },
}


@pytest.fixture
def fleet(production: str) -> None:
    put_server()
    put_figures(
        protection=PROTECTION,
        tenants=[{"tenant": "acme-retail", "requests_per_s": 60.0, "refused_per_s": 1.0}],
        rules=[
            {
                "tenant": "acme-retail",
                "rule": "requests",
                "asked_per_s": 15.0,
                "refused_per_s": 0.0,
                "shadow_per_s": 0.0,
            },
            {
                "tenant": "nobody",
                "rule": "requests",
                "asked_per_s": 2.0,
                "refused_per_s": 1.5,
                "shadow_per_s": 0.0,
            },
            {
                "tenant": "",
                "rule": "requests",
                "asked_per_s": 17.0,
                "refused_per_s": 1.5,
                "shadow_per_s": 0.0,
            },
        ],
    )


def page(client: Any, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.content.decode()[:2000]
    return text_of(answer.content.decode().partition('id="rows"')[2])


def test_a_tier_that_does_not_call_is_listed_with_the_others(log_in: Any, production: str) -> None:
    """Pods report no zeros: "Standard 0 of 150" stood alone, beside settings with a part for each tier."""
    put_server()
    edits.set_protection(
        environment=production,
        dependency="payments-api",
        protection={"bulkhead": {"max_concurrent": 50, "shares": [50, 35, 15]}},
        expected_version=None,
        reason="to see every tier",
        actor=ADA,
    )
    put_figures(
        protection={"payments-api": {"callers": 3, "tiers": {"standard": {"limit": 150, "active": 2}}}}
    )
    shown = page(log_in("vera"), "/bulkheads").partition("Refused in the last hour")[0]
    idle = "does not call: the other tiers have its slots"
    for words in (f"Critical {idle}", "Standard 2 of 150", f"Optional {idle}"):
        assert words in shown, words
    shown = text_of(
        log_in("vera").get("/breakers/payments-api").content.decode().partition('id="protection"')[2]
    )
    for words in ("Critical does not call", "Standard 2 / 150", "Optional does not call"):
        assert words in shown, words


@pytest.mark.usefixtures("fleet")
def test_the_bulkhead_that_refuses_comes_first(log_in: Any) -> None:
    shown = page(log_in("vera"), "/bulkheads")
    assert shown.index("payments-api") < shown.index("search")
    assert "Standard 17 of 17 9 2.5/s 1/s" in shown


@pytest.mark.usefixtures("fleet")
def test_the_overview_has_the_worst_quotas_bulkheads_and_retries(log_in: Any) -> None:
    html = log_in("vera").get("/").content.decode()
    shown = text_of(html.partition('id="kpis"')[2])
    assert "Bulkhead refusals 3.5/s" in shown
    assert "payments-api: no place" in shown
    assert "Retry load 1.17" in shown, "5 retries of 30 first calls"
    assert "requests 1.5 17 8.8 %" in shown, "of all tenants together"
    assert "payments-api 23 of 67 9 3.5" in shown
    assert 'href="/refusals?rule=requests">1.5</a>' in html
    slots = shown.partition("Slots in use")[2]
    assert slots.index("payments-api") < slots.index("search")


def test_the_load_of_retries_is_unknown_only_while_no_pod_reports(log_in: Any) -> None:
    client = log_in("vera")

    def tile() -> str:
        return text_of(client.get("/").content.decode().partition("Retry load")[2])[:60]

    assert tile().startswith("no data"), "no pod has reported"
    put_figures(protection={"search": {"callers": 3, "first_calls_per_s": 0.0}})
    assert tile().startswith("no calls none that can be retried, in 30 s"), "while its breaker is open"
    for name in ("payments-api", "search"):
        change = {"environment": "production", "dependency": name, "reason": "no retries", "actor": ADA}
        edits.set_protection(protection={"retry": None}, expected_version=None, **change)
    assert tile().startswith("off no dependency has retries")


@pytest.mark.usefixtures("fleet")
def test_refusals_of_bulkheads_in_the_last_hour_lead_to_them(log_in: Any, monkeypatch: Any) -> None:
    client = log_in("vera")
    shown = page(client, "/bulkheads").partition("Refused in the last hour")[2]
    assert "payments-api Standard unknown unknown" in shown

    def lately(environment: str, names: list[str], now: Any) -> list[BulkheadRefusals]:
        tiers = (TierRefusals(tier="standard", full=1_204, timed_out=0),)
        return [BulkheadRefusals(dependency=name, known_s=3_590, tiers=tiers) for name in names]

    monkeypatch.setattr(overview, "refused_lately", lately)
    html = client.get("/bulkheads").content.decode().partition("Refused in the last hour")[2]
    assert "search Standard 1,204 0" in text_of(html)
    assert 'href="/refusals?dependency=search&amp;reason=bulkhead_full">1,204</a>' in html

    def fails(*given: Any) -> None:
        raise OperationalError

    monkeypatch.setattr(overview, "refused_lately", fails)
    assert "Postgres does not answer." in page(client, "/bulkheads")


@pytest.mark.usefixtures("fleet")
def test_retries_are_compared_with_their_budget(log_in: Any) -> None:
    for name, retry in (("payments-api", {}), ("search", None)):
        edits.set_protection(
            environment="production",
            dependency=name,
            protection={"retry": retry},
            expected_version=None,
            reason="for a test",
            actor=ADA,
        )
    shown = page(log_in("vera"), "/retries")
    assert "payments-api 20/s 5/s 1.25\u00d7 1.20\u00d7 1/s 0.5/s 2/s 0/s" in shown
    assert "search 10/s 0/s 1.00\u00d7 retries are off" in shown
    # It read "Budget 1.20" beside a setting "Budget, %: 10": each has its own name.
    whole = text_of(log_in("ada").get("/retries").content.decode())
    assert "Load Load at most" in whole
    assert "limit the retries of each pod, in percent of the calls of the pod" in whole
    settings = text_of(log_in("ada").get("/breakers/payments-api/settings").content.decode())
    labels = "Retries of one pod at most, % of its first calls", "All attempts of the fleet at most, % of its"
    for label in labels:
        assert label in settings, label


@pytest.mark.usefixtures("fleet")
def test_retries_of_the_last_hour_are_displayed_or_unknown(log_in: Any, monkeypatch: Any) -> None:
    known = RetriesLately(
        dependency="search", first_calls=900, retries=100, helped=40, no_budget=7, exhausted=60
    )
    nothing = RetriesLately(
        dependency="payments-api", first_calls=None, retries=None, helped=None, no_budget=None, exhausted=None
    )
    monkeypatch.setattr(overview, "retries_lately", lambda *about: [known, nothing])
    shown = page(log_in("vera"), "/retries")
    assert "search 1,000 100 40, 40 % 7 60" in shown
    assert "payments-api unknown: no pod reported it in the last hour" in shown


@pytest.mark.usefixtures("fleet")
def test_limits_display_who_is_refused_and_who_is_near(log_in: Any) -> None:
    shown = page(log_in("vera"), "/limits")
    assert shown.index("nobody") < shown.index("acme-retail")
    # 15 requests/s are 900 per minute of 1,000.
    assert "acme-retail requests 1,000 per min, burst 100 900 of 1,000, near the limit 15/s" in shown
    assert "unregistered" in shown


def test_a_limit_that_is_exceeded_is_not_called_near(log_in: Any, production: str) -> None:
    put_server()
    rule = {"tenant": "acme-retail", "rule": "requests", "refused_per_s": 3.3, "shadow_per_s": 0.0}
    put_figures(rules=[{**rule, "asked_per_s": 20.0}])
    assert "1,200 of 1,000, over the limit" in page(log_in("vera"), "/limits")


@pytest.mark.usefixtures("fleet")
def test_the_rate_of_now_is_not_displayed_as_the_use_of_a_day(log_in: Any) -> None:
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=1000,
        window_s=86_400,
        burst=1,
        algorithm="fixed_window",
        period="day",
        expected_version=None,
        reason="the contract counts days",
        actor=ADA,
    )
    shown = page(log_in("vera"), "/limits")
    assert "acme-retail requests 1,000 per day, fixed window unknown for this window 15/s" in shown


@pytest.mark.usefixtures("production")
def test_without_figures_the_pages_say_so(log_in: Any) -> None:
    client = log_in("vera")
    assert "No pod reports a bulkhead." in page(client, "/bulkheads")
    assert "No pod reports retries." in page(client, "/retries")
    assert "No tenant sends requests now." in page(client, "/limits")
