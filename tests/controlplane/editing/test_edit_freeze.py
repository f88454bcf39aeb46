"""While edits are frozen, only overrides and what ends by itself change anything."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.state.evaluate import evaluate
from controlplane.audit.models import Entry
from controlplane.breakers.models import Override
from controlplane.breakers.overrides import override_breaker
from controlplane.editing import edits
from controlplane.editing.edits.expiry import expire_quotas
from controlplane.editing.freeze import LONGEST, end_freeze, freeze_edits
from controlplane.errors import EditsFrozen, InvalidEdit
from controlplane.policies.models import Environment, Tenant, TenantQuota
from controlplane.schedules.due import apply_due
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Schedule, ScheduleState
from controlplane.status.read_facts import read_facts
from controlplane.status.status import status_of
from fuseboard.contract.words import OverrideMode
from tests.controlplane.calling import API, problem
from tests.people import create_people

WHY: dict[str, Any] = {"environment": "production", "reason": "the week of Christmas"}


@pytest.fixture(autouse=True)
def _ada(production: str) -> None:
    """The rights of the author count when a change is due, so there is an account."""
    create_people("ada")


def freeze(ada: Any, **left: int) -> datetime:
    until = timezone.now() + timedelta(**(left or {"hours": 8}))
    freeze_edits(until=until, actor=ada, **WHY)
    return until


def suspend(ada: Any) -> int:
    return edits.suspend_tenant(tenant="acme", actor=ada, **WHY)


def overdue() -> list[str]:
    found = evaluate(status_of(read_facts()))
    return [each.text for each in found if each.text.startswith("Overdue")]


def test_an_edit_is_refused_and_says_by_whom_until_when_and_why(production: str, ada: Any) -> None:
    until = freeze(ada)
    head = Environment.objects.get(pk="production").revision
    with pytest.raises(EditsFrozen, match="by ada: the week of Christmas") as refused:
        suspend(ada)
    assert refused.value.until == until
    assert not Tenant.objects.get(key="acme").suspended
    assert Environment.objects.get(pk="production").revision == head
    end_freeze(actor=ada, **WHY)
    suspend(ada)
    entries = list(Entry.objects.filter(action__startswith="edit_freeze").order_by("id"))
    assert [entry.action for entry in entries] == ["edit_freeze.begun", "edit_freeze.ended"]


def test_overrides_and_ends_of_temporary_quotas_still_work(production: str, ada: Any, hour: Any) -> None:
    edits.set_tenant_quota(
        tenant="acme",
        quota="requests",
        limit=5,
        window_s=60,
        burst=5,
        expires_at=hour,
        expected_version=None,
        actor=ada,
        **WHY,
    )
    TenantQuota.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    freeze(ada)
    override_breaker(dependency="openai", mode=OverrideMode.FORCED_OPEN, expires_at=hour, actor=ada, **WHY)
    assert Override.objects.filter(ended_at__isnull=True).exists()
    assert expire_quotas() == [("production", "acme", "requests")]


def test_a_scheduled_change_waits_and_raises_no_alert(production: str, ada: Any) -> None:
    document = {"tenants": {"acme": {"suspended": True}}}
    row = schedule_change(document=document, due_at=timezone.now() + timedelta(hours=1), actor=ada, **WHY)
    Schedule.objects.update(due_at=timezone.now() - timedelta(minutes=5))
    assert overdue()
    freeze(ada)
    apply_due()
    row.refresh_from_db()
    assert row.state == ScheduleState.WAITING
    assert not overdue()
    end_freeze(actor=ada, **WHY)
    apply_due()
    row.refresh_from_db()
    assert row.state == ScheduleState.APPLIED
    assert Tenant.objects.get(key="acme").suspended


def test_changes_of_a_frozen_environment_do_not_hold_up_others(production: str, ada: Any) -> None:
    edits.create_environment(environment="staging", reason="for a test", actor=ada)
    soon = timezone.now() + timedelta(hours=1)
    frozen = {"tenants": {"acme": {"suspended": True}}}
    for number in range(101):
        due_at = soon + timedelta(milliseconds=number)
        schedule_change(document=frozen, due_at=due_at, actor=ada, **WHY)
    free = schedule_change(
        environment="staging",
        document={"tuning": {"ramp_ms": 9_000}},
        due_at=soon + timedelta(minutes=1),
        reason="for a test",
        actor=ada,
    )
    Schedule.objects.update(due_at=timezone.now() - timedelta(minutes=5))
    freeze(ada)
    assert apply_due() == 1
    free.refresh_from_db()
    assert free.state == ScheduleState.APPLIED


def test_a_freeze_ends_by_itself(production: str, ada: Any) -> None:
    freeze(ada)
    Environment.objects.update(frozen_until=timezone.now() - timedelta(seconds=1))
    suspend(ada)
    with pytest.raises(InvalidEdit, match="not frozen"):
        end_freeze(actor=ada, **WHY)


@pytest.mark.parametrize("until", [timezone.now() - timedelta(hours=1), datetime(2999, 1, 1, tzinfo=UTC)])
def test_a_time_that_is_past_or_too_far_is_refused(production: str, ada: Any, until: datetime) -> None:
    with pytest.raises(InvalidEdit, match=f"in the next {LONGEST.days} days"):
        freeze_edits(until=until, actor=ada, **WHY)


def test_the_api_freezes_answers_423_and_ends_it(call: Any, ada: Any) -> None:
    until = (timezone.now() + timedelta(hours=8)).strftime("%Y-%m-%dT%H:%M:%SZ")
    path = f"{API}/edit-freeze"
    made = call("admin", "PUT", path, {"until": until, "reason": "the week of Christmas"})
    assert made.status_code == 200, made.content
    body = {"suspended": True, "expected_version": 1, "reason": "for a test"}
    refused = problem(call("admin", "PATCH", f"{API}/tenants/acme", body), 423)
    assert refused["type"] == "urn:fuseboard:problem:edits-frozen"
    assert call("viewer", "GET", path).json()["by"]
    problem(call("operator", "PUT", path, {"until": until, "reason": "for a test"}), 403)
    assert call("admin", "DELETE", f"{path}?reason=for+a+test").json()["until"] is None


def test_two_freezes_at_once_leave_the_last(production: str, ada: Any) -> None:
    freeze(ada, hours=1)
    until = freeze(ada, hours=2)
    assert read_facts().frozen_until == until.timestamp()
