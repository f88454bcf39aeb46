"""Scheduled changes and temporary quotas, on their page and among the alerts."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from shown import text_of

from controlplane.approvals.models import ChangeRequest
from controlplane.approvals.rules import set_approvals
from controlplane.change_requests import decide
from controlplane.editing import edits
from controlplane.phrases import moment
from controlplane.policies.models import Tenant, TierQuota
from controlplane.schedules.due import announce, run_due
from controlplane.schedules.models import Schedule
from tests.people import ADA, BOB, OLGA

pytestmark = pytest.mark.django_db(transaction=True)

PLAN = "tiers:\n  pro:\n    quotas: {a.b: {limit: 5, window_s: 60}}\ntenants:\n  acme-retail: {tier: free}\n"
WHY = "The contract begins then"


def form(**changed: str) -> dict[str, str]:
    due = (datetime.now(UTC) + timedelta(minutes=30)).strftime("%Y-%m-%dT%H:%M")
    return {"act": "new", "due_at": due, "plan": PLAN, "reason": WHY} | changed


def page(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:3000]
    return answer.content.decode()


def test_a_change_is_scheduled_displayed_applied_and_kept_in_history(log_in: Any) -> None:
    client = log_in("ada")
    assert client.post("/schedules", form()).status_code == 302
    shown = page(client.get("/schedules"))
    # What it changes, not only how many things.
    assert "tier pro: a.b limit 5 per min" in text_of(shown)
    assert "tenant acme-retail: tier free" in text_of(shown)
    assert "Scheduled change" in page(client.get("/")), "it is due within the hour, so the overview says so"
    Schedule.objects.update(due_at=timezone.now())
    run_due()
    tenant = Tenant.objects.select_related("tier").get(key="acme-retail")
    assert tenant.tier.name == "free"
    assert "Applied" in page(client.get("/schedules"))


def test_a_plan_for_another_environment_is_refused(log_in: Any) -> None:
    client, tenants = log_in("ada"), "tenants:\n  acme-retail: {tier: free}\n"
    shown = page(client.post("/schedules", form(plan=f"environment: staging\n{tenants}")), 422)
    assert "The plan is for staging, not production." in shown
    assert not Schedule.objects.exists()
    page(client.post("/schedules", form(plan=f"environment: production\n{tenants}")), 302)
    assert Schedule.objects.get().document["environment"] == "production"


def test_every_problem_of_a_change_is_shown_at_once(log_in: Any) -> None:
    """With an empty reason, a wrong time and a wrong plan waited for the second try."""
    wrong = {"reason": "", "due_at": "2020-01-01T00:00", "plan": "tenants: {acme-retail: {tire: free}}"}
    shown = page(log_in("ada").post("/schedules", form(**wrong)), 422)
    for words in ("Say why", "Choose a time in the future", "has no such field"):
        assert words in text_of(shown)
    assert not Schedule.objects.exists()


def test_every_section_of_a_plan_can_be_scheduled(log_in: Any) -> None:
    plan = """
default_tier: free
tuning: {ramp_ms: 9000}
subject_limits:
  by.ip: {limit: 5, window_s: 60, per: [ip]}
templates:
  standard: {limit: 70, window_s: 60, endpoints: ["GET /*"]}
tiers:
  free: {quotas: {a.b: {template: standard}}}
"""
    client = log_in("ada")
    page(client.post("/schedules", form(plan=plan)), 302)
    assert "template standard" in text_of(page(client.get("/schedules")))
    Schedule.objects.update(due_at=timezone.now())
    run_due()
    assert Schedule.objects.get().state == "applied"
    assert TierQuota.objects.get(name="a.b").limit == 70


def test_a_row_lists_every_value_that_the_change_sets(log_in: Any) -> None:
    """It displayed two of them, and none of what is switched off, without saying that some are missing."""
    plan = """
tenants:
  acme-retail:
    suspended: false
    quotas:
      requests: {limit: 5000, window_s: 60, burst: 500, failure_policy: fail_closed, shadow: false}
dependencies:
  payments-api:
    fallback_note: ""
    breaker: {window_s: 30, failure_percent: 40, slow_percent: 60, open_ms: 20000}
"""
    client = log_in("ada")
    page(client.post("/schedules", form(plan=plan)), 302)
    shown = text_of(page(client.get("/schedules")))
    for words in (
        *("requests limit 5,000 per min", "requests burst 500"),
        *("requests without Redis: refuse", "not requests shadow", "not suspended"),
        *("window 30 s", "failure 40 %", "slow 60 %", "open 20,000 ms", "no fallback note"),
    ):
        assert words in shown
    many = "".join(f"      q{number}: {{limit: 5, window_s: 60}}\n" for number in range(20))
    page(client.post("/schedules", form(plan=f"tenants:\n  acme-retail:\n    quotas:\n{many}")), 302)
    assert "and 8 more values" in text_of(page(client.get("/schedules")))


def test_a_row_of_a_large_change_counts_what_it_does_not_display(log_in: Any) -> None:
    plan = "".join(f"  new-{number}: {{tier: free}}\n" for number in range(5))
    client = log_in("ada")
    assert client.post("/schedules", form(plan=f"tenants:\n{plan}")).status_code == 302
    shown = text_of(page(client.get("/schedules")))
    assert "tenant new-2: tier free and 2 more" in shown


def test_a_failed_scheduled_change_is_an_alert_until_it_is_acknowledged(log_in: Any) -> None:
    client = log_in("ada")
    client.post("/schedules", form(plan="tenants:\n  new-one: {tier: gold}\ntiers:\n  gold: {}\n"))
    Schedule.objects.update(due_at=timezone.now(), document={"tenants": {"new-one": {"tier": "gold"}}})
    run_due()
    shown = page(client.get("/"))
    assert "1 scheduled change failed" in shown
    shown = page(client.get("/schedules"))
    assert "There is no tier" in shown
    number = str(Schedule.objects.get().pk)
    assert client.post("/schedules", {"act": "seen", "schedule": number, "reason": WHY}).status_code == 302
    assert "scheduled change failed" not in page(client.get("/"))


def test_a_change_that_needs_approval_when_it_is_due_waits_and_is_no_failure(log_in: Any) -> None:
    """It was red, with a critical alert that asked for the change by hand."""
    client = log_in("ada")
    page(client.post("/schedules", form()), 302)
    set_approvals(environment="production", needed=1, reason=WHY, actor=ADA)
    Schedule.objects.update(due_at=timezone.now())
    run_due()
    row = Schedule.objects.get()
    request = ChangeRequest.objects.get()
    assert (row.state, row.request) == ("proposed", request.pk)
    shown = page(client.get("/schedules"))
    assert f'<a href="/requests/{request.pk}">change request {request.pk}</a>' in shown
    (past,) = re.findall(r'aria-labelledby="h-p".*?</section>', shown, re.DOTALL)
    assert f"Became change request {request.pk}" in text_of(past)
    assert "Waiting for approval" not in text_of(past), "it is over, and the request may be too"
    assert "Failed" not in text_of(shown)
    assert "scheduled change failed" not in page(client.get("/"))
    assert f"Request {request.pk}" in text_of(page(client.get("/requests")))
    decide.approve(environment="production", request=request.pk, expected_version=1, actor=OLGA)
    decide.apply(environment="production", request=request.pk, actor=BOB)
    assert Tenant.objects.select_related("tier").get(key="acme-retail").tier.name == "free"
    assert 'id="h-q"' not in page(client.get("/schedules")), "only Past changes names it"


def test_the_same_change_is_scheduled_once_for_one_time(log_in: Any) -> None:
    client, typed = log_in("ada"), form()
    page(client.post("/schedules", typed), 302)
    shown = page(client.post("/schedules", typed), 422)
    assert (
        "The same change is already scheduled for this time: tenant acme-retail, tier pro, by ada." in shown
    ), text_of(shown)
    later = (datetime.now(UTC) + timedelta(minutes=50)).strftime("%Y-%m-%dT%H:%M")
    page(client.post("/schedules", form(due_at=later)), 302)
    assert Schedule.objects.count() == 2
    set_approvals(environment="production", needed=1, reason=WHY, actor=ADA)
    last = (datetime.now(UTC) + timedelta(minutes=55)).strftime("%Y-%m-%dT%H:%M")
    page(client.post("/schedules", form(due_at=last)), 302)
    shown = page(client.post("/schedules", form(due_at=last)), 422)
    assert "already waits for approval: change request" in shown


def test_a_temporary_quota_is_listed_and_announced(log_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The overview announced the end of a quota in the second in which the quota was made."""
    ends = timezone.now() + timedelta(minutes=20)
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=5_000,
        window_s=60,
        burst=500,
        expected_version=None,
        expires_at=ends,
        reason=WHY,
        actor=ADA,
    )
    client = log_in("vera")
    announce()
    assert "Quota requests of acme-retail ends" not in page(client.get("/"))
    with monkeypatch.context() as later:
        later.setattr(timezone, "now", lambda: ends - timedelta(minutes=5))
        announce()
    shown = text_of(page(client.get("/")))
    assert "Quota requests of acme-retail ends" in shown
    assert f"Automatically, at {moment(ends.timestamp())}" in shown
    assert "quota of tier pro" in page(client.get("/schedules"))


def test_only_admins_cancel_a_scheduled_change(log_in: Any) -> None:
    log_in("ada").post("/schedules", form())
    number = str(Schedule.objects.get().pk)
    cancel = {"act": "cancel", "schedule": number, "reason": WHY}
    assert log_in("olga").post("/schedules", cancel).status_code == 403
    assert "Cancel</button>" not in page(log_in("olga").get("/schedules"))
    assert log_in("ada").post("/schedules", cancel).status_code == 302
    assert Schedule.objects.get().state == "cancelled"
    assert "already cancelled" in page(log_in("ada").post("/schedules", cancel), 422)


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        ({"due_at": ""}, 422, "Enter a date and a time"),
        ({"due_at": "2020-01-01T00:00"}, 422, "Choose a time in the future"),
        ({"plan": "tenants:\n  a: {tire: x}\n"}, 422, "no such field"),
        ({"plan": ""}, 422, "The file is empty"),
        ({"reason": "x"}, 422, "Say why"),
        ({"act": "cancel", "schedule": "x"}, 422, "Choose a change from the list"),
        ({"act": "cancel", "schedule": "77"}, 404, "There is no schedule"),
    ],
)
def test_an_invalid_change_is_not_scheduled(log_in: Any, changed: Any, status: int, said: str) -> None:
    shown = page(log_in("ada").post("/schedules", form(**changed)), status)
    assert said in shown
    assert not Schedule.objects.exists()
