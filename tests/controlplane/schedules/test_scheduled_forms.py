"""A change that was scheduled in a form does what the form showed, or fails."""

from datetime import datetime
from typing import Any

import pytest
from django.utils import timezone

from controlplane.approvals import rules
from controlplane.approvals.proposals import Proposed
from controlplane.change_requests import decide
from controlplane.editing import edits
from controlplane.editing.edits import EntityEdit, TenantChange, TenantFilter, check_scheduled
from controlplane.editing.edits import bulk as bulk_edits
from controlplane.editing.edits.pod_protection import scheduled_pod_protection
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.models import Environment, Tenant, TenantQuota
from controlplane.schedules.due import run_due
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Needs, Schedule
from tests.people import ADA, BOB, OLGA, create_people

WHY: dict[str, Any] = {"environment": "production", "reason": "for a sale in spring"}
RATE: dict[str, Any] = {"limit": 600, "window_s": 60, "burst": 100}
#: What the form of a tenant sends when a number of an inherited quota is typed.
INHERITED: dict[str, Any] = {"requests": {**RATE, "limit": 900, "failure_policy": "fail_open"}}


@pytest.fixture
def pro(production: str) -> str:
    create_people("ada")
    bob_sets(**RATE)
    return production


def bob_sets(**values: Any) -> int:
    return edits.set_tier_quota(
        tier="pro", quota="requests", expected_version=None, actor=BOB, **WHY, **values
    )


def acme_sets(**values: Any) -> int:
    return edits.set_tenant_quota(
        tenant="acme", quota="requests", expected_version=None, actor=BOB, **WHY, **values
    )


def schedule(hour: datetime, quotas: dict[str, Any]) -> Schedule:
    edit = EntityEdit(
        environment="production",
        kind="tenant",
        name="acme",
        typed={"quotas": quotas},
        base=Environment.objects.get(pk="production").revision,
    )
    return schedule_change(due_at=hour, document=check_scheduled(edit), needs=Needs.PRESENT, actor=ADA, **WHY)


def make_due(*rows: Schedule) -> list[str]:
    """Make them due one after the other, and return what became of each."""
    for row in rows:
        Schedule.objects.filter(pk=row.pk).update(due_at=timezone.now())
        run_due()
        row.refresh_from_db()
    return [row.state for row in rows]


def test_a_number_is_scheduled_with_the_rate_that_the_form_showed(pro: str, hour: datetime) -> None:
    acme_sets(**RATE)
    monday = schedule(hour, {"requests": {"limit": 900}})
    friday = schedule(hour, {"requests": {"limit": 1_200}})
    ends = hour.replace(year=hour.year + 1)
    acme_sets(limit=5, window_s=3_600, burst=5, shadow=True, expires_at=ends)
    assert make_due(monday) == ["applied"]
    row = TenantQuota.objects.get()
    assert (row.limit, row.window_s, row.burst, row.expires_at) == (900, 60, 100, None)
    assert row.shadow, "what was not typed stays"
    assert make_due(friday) == ["applied"]
    assert TenantQuota.objects.get().limit == 1_200


def test_a_quota_that_ended_before_its_change_is_due_does_not_return(pro: str, hour: datetime) -> None:
    acme_sets(**RATE)
    made = schedule(hour, {"requests": {"limit": 900}})
    edits.remove_tenant_quota(tenant="acme", quota="requests", expected_version=None, actor=BOB, **WHY)
    assert make_due(made) == ["failed"]
    assert "requests of tenant acme was removed, or ended, since" in made.error
    assert not TenantQuota.objects.exists()


@pytest.mark.parametrize("by", ["quota", "tier", "nothing", "another quota"])
def test_a_quota_of_the_tier_must_be_the_one_that_the_form_showed(pro: str, hour: datetime, by: str) -> None:
    made = [schedule(hour, INHERITED), schedule(hour, {"requests": {**INHERITED["requests"], "limit": 7}})]
    if by == "quota":
        bob_sets(failure_policy="fail_closed")
    elif by == "tier":
        edits.change_tier(tenant="acme", tier="free", expected_version=None, actor=BOB, **WHY)
    elif by == "another quota":
        edits.set_tier_quota(tier="pro", quota="uploads", expected_version=None, actor=BOB, **RATE, **WHY)
    if by in ("quota", "tier"):
        assert make_due(*made) == ["failed", "failed"]
        assert "which tenant acme inherited when this was scheduled, was changed since" in made[0].error
        assert not TenantQuota.objects.exists()
    else:
        assert make_due(*made) == ["applied", "applied"]
        assert TenantQuota.objects.get().limit == 7


def test_a_scheduled_change_keeps_what_it_needs_through_its_approval(pro: str, hour: datetime) -> None:
    create_people("olga")
    edits.create_tier(tier="gold", title="", priority=7, actor=ADA, **WHY)
    rules.set_approvals(needed=1, actor=ADA, **WHY)
    document = {"tiers": {"gold": {"title": "Gold", "priority": 80}}}
    with pytest.raises(Proposed) as proposed:
        schedule_change(due_at=hour, document=document, needs=Needs.PRESENT, actor=ADA, **WHY)
    with pytest.raises(Proposed) as inherits:
        schedule(hour, INHERITED)
    made = []
    for row in (proposed.value.request, inherits.value.request):
        decide.approve(environment=pro, request=row.pk, expected_version=row.version, actor=OLGA)
        applied = decide.apply(environment=pro, request=row.pk, actor=ADA)
        made.append(Schedule.objects.get(pk=applied.schedule))
        assert (made[-1].needs, made[-1].base) == (Needs.PRESENT, row.base)
    with pytest.raises(Proposed) as removal:
        edits.remove_entity(kind="tier", name="gold", actor=ADA, **WHY)
    row = removal.value.request
    decide.approve(environment=pro, request=row.pk, expected_version=row.version, actor=OLGA)
    decide.apply(environment=pro, request=row.pk, actor=ADA)
    assert make_due(made[0]) == ["failed"]
    assert "has removed tier gold since" in made[0].error


def schedule_bulk(hour: datetime, change: TenantChange, base: int | None = None) -> Schedule:
    document = edits.scheduled_bulk_edit(
        environment="production",
        filter=TenantFilter(tier="pro"),
        change=change,
        expected_revision=Environment.objects.get().revision if base is None else base,
    )
    return schedule_change(due_at=hour, document=document, needs=Needs.PRESENT, actor=ADA, **WHY)


def test_a_bulk_edit_is_scheduled_for_the_tenants_that_match_now(pro: str, hour: datetime) -> None:
    for name, tier in (("hooli", "pro"), ("group", "free")):
        edits.create_tenant(tenant=name, tier=tier, actor=BOB, **WHY)
    acme_sets(**(RATE | {"limit": 100}), shadow=True)
    made = schedule_bulk(hour, TenantChange(scale_percent={"requests": 150}, parent="group"))
    edits.create_tenant(tenant="umbrella", tier="pro", actor=BOB, **WHY)
    acme_sets(shadow=False, window_s=30)
    assert make_due(made) == ["applied"]
    rows = {row.tenant.key: row for row in TenantQuota.objects.select_related("tenant")}
    found = {key: (row.limit, row.window_s, row.burst, row.shadow) for key, row in rows.items()}
    assert found == {"acme": (150, 60, 150, False), "hooli": (900, 60, 150, False)}, (
        "the rates that were shown"
    )
    children = Tenant.objects.filter(parent="group").values_list("key", flat=True)
    assert set(children) == {"acme", "hooli"}


def test_what_a_plan_cannot_say_is_not_scheduled_in_bulk(
    pro: str, hour: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    acme_sets(**RATE, expires_at=hour.replace(year=hour.year + 1))
    old = Environment.objects.get().revision
    bob_sets(limit=7)
    scaled = TenantChange(scale_percent={"requests": 150})
    for change, said in (
        (TenantChange(remove_quotas=("requests",)), "A removal cannot be scheduled"),
        (scaled, "Quota requests of acme is temporary"),
        (TenantChange(suspended=False), "No matching tenant would change"),
    ):
        with pytest.raises(InvalidEdit, match=said):
            schedule_bulk(hour, change)
    with pytest.raises(EditConflict):
        schedule_bulk(hour, scaled, base=old)
    monkeypatch.setattr(bulk_edits, "MAX_SCHEDULED", 0)
    with pytest.raises(InvalidEdit, match="At most 0 tenants, not 1"):
        schedule_bulk(hour, TenantChange(suspended=True))
    assert not Schedule.objects.exists()


def test_the_protection_of_pods_is_scheduled_with_what_differs(production: str, hour: datetime) -> None:
    create_people("ada")
    edits.set_pod_protection(protection={"readiness": {"hold_ms": 9_000}}, actor=BOB, **WHY)
    base = Environment.objects.get().revision

    def planned(**more: Any) -> dict[str, Any]:
        return scheduled_pod_protection(
            environment="production",
            protection={"readiness": {"hold_ms": 9_000, "unready_percent": 30}, "retries_per_s": 4},
            observe_for_s=more,
            expected_revision=base,
            due_at=hour,
        )

    ends = int(hour.timestamp() * 1_000_000) + 3_600_000_000
    document = planned(shedding=3_600)
    assert document == {
        "protection": {
            "readiness": {"unready_percent": 30},
            "retries_per_s": 4,
            "observe": {"shedding_until_us": ends},
        }
    }, "it observes from the time of the change"
    made = schedule_change(due_at=hour, document=document, needs=Needs.PRESENT, actor=ADA, **WHY)
    edits.set_pod_protection(protection={"readiness": {"hold_ms": 8_000}}, actor=BOB, **WHY)
    assert make_due(made) == ["applied"]
    saved = Environment.objects.get().protection
    assert saved["readiness"] == {"hold_ms": 8_000, "unready_percent": 30}
    assert saved["observe"]["shedding_until_us"] == ends
    with pytest.raises(EditConflict):
        planned()
