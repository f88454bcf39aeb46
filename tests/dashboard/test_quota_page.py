"""The quota form beyond three numbers: start and end, shadow, and the preview of its effect."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from shown import text_of

from controlplane.audit.actor import Actor
from controlplane.editing import edits
from controlplane.policies.models import TenantQuota
from controlplane.schedules.models import Schedule
from controlplane.status.read_facts import read_facts
from controlplane.usage.models import Demand
from dashboard.views import page as views
from fuseboard.contract.words import FailurePolicy
from tests.people import ADA

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/tenant?key=acme-retail&quota=requests"


def form(**changed: str) -> dict[str, str]:
    usual = {"quota": "requests", "limit": "600", "window_s": "60", "burst": "1", "version": "1"}
    return usual | {"reason": "CHG-9 for the sale"} | changed


def typed(delta: timedelta) -> str:
    return (datetime.now(UTC) + delta).strftime("%Y-%m-%dT%H:%M")


def page(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.content.decode()[:3000]
    return answer.content.decode()


def put_demand() -> None:
    """1,500 requests per minute for ten minutes, and as many from other tenants."""
    start = timezone.now().replace(second=0, microsecond=0) - timedelta(hours=1)
    for minute in range(10):
        for tenant, asked in (("acme-retail", 1_500), ("", 3_000)):
            at = start + timedelta(minutes=minute)
            Demand.objects.create(
                environment="production", tenant=tenant, grain_s=60, at=at, asked=asked, refused=0
            )


def set_shadow() -> None:
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=600,
        window_s=60,
        burst=1,
        shadow=True,
        expected_version=None,
        reason="Try it first",
        actor=ADA,
    )


def test_a_page_reads_the_fleet_once_and_a_preview_only_its_divisor(log_in: Any, monkeypatch: Any) -> None:
    """Both read everything, the page twice, for one number."""
    read, client = [], log_in("ada")
    monkeypatch.setattr(views, "read_facts", lambda environment: read.append(1) or read_facts(environment))
    assert "Pods allow every call" in page(client.get(PATH))
    assert len(read) == 1
    assert "Pods allow every call" in page(client.post(f"/tenant/preview?{PATH.partition('?')[2]}", form()))
    assert len(read) == 1


def test_a_temporary_quota_keeps_its_end_when_it_is_edited(log_in: Any) -> None:
    client, ends = log_in("ada"), typed(timedelta(hours=5))
    assert client.post(PATH, form(ends=ends)).status_code == 302
    quota = TenantQuota.objects.get()
    assert quota.expires_at.strftime("%Y-%m-%dT%H:%M") == ends
    assert f'name="ends" value="{ends}"' in page(client.get(PATH))
    assert "expiring override" in page(client.get("/tenant/effective?key=acme-retail"))


def test_a_quota_that_starts_later_is_scheduled(log_in: Any) -> None:
    client = log_in("ada")
    answer = client.post(PATH, form(starts=typed(timedelta(hours=2)), ends=typed(timedelta(hours=5))))
    assert answer["Location"] == "/schedules"
    assert not TenantQuota.objects.exists()
    planned = Schedule.objects.get()
    assert planned.document["tenants"]["acme-retail"]["quotas"]["requests"]["limit"] == 600
    assert "acme-retail" in page(client.get("/schedules"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ends": "soon"}, "Enter a date and a time"),
        ({"ends": "2020-01-01T00:00"}, "Choose a time in the next 400 days"),
        ({"starts": "2020-01-01T00:00"}, "Choose a time in the future"),
        ({"shadow": "perhaps"}, "Select a valid choice"),
    ],
)
def test_invalid_times_are_reported_beside_their_field(
    log_in: Any, changed: dict[str, str], said: str
) -> None:
    assert said in page(log_in("ada").post(PATH, form(**changed)), 422)
    assert not TenantQuota.objects.exists()
    assert not Schedule.objects.exists()


def test_the_form_previews_its_effect_before_it_is_saved(log_in: Any) -> None:
    put_demand()
    client = log_in("ada")
    shown = page(client.post("/tenant/preview?key=acme-retail", form(), HTTP_HX_REQUEST="true"))
    # Tier pro lets 1,000 per minute through, with a burst of 100; the form 600 with a burst of one.
    assert "429s: 4,900 before, 8,999 after, of 15,000 requests" in text_of(shown)
    assert "other tenants: 25/s" in text_of(shown)
    assert not TenantQuota.objects.exists()
    assert "<b>" not in page(client.post("/tenant/preview?key=acme-retail", form(limit="")))
    assert log_in("olga").post("/tenant/preview?key=acme-retail", form()).status_code == 403


def test_a_shadow_is_compared_and_promoted(log_in: Any) -> None:
    put_demand()
    set_shadow()
    client = log_in("ada")
    shown = page(client.get(PATH))
    assert "it would have refused 8,999 of 15,000 requests" in text_of(shown)
    # Saving without a choice keeps it a shadow.
    assert client.post(PATH, form(limit="700", version="2")).status_code == 302
    assert TenantQuota.objects.get().shadow
    assert client.post(PATH, form(shadow="no", version="3")).status_code == 302
    assert not TenantQuota.objects.get().shadow
    assert "is a shadow quota" not in page(client.get(PATH))


def test_every_role_sees_effective_settings_even_of_an_unknown_tenant(log_in: Any) -> None:
    client = log_in("vera")
    assert "tier default" in page(client.get("/tenant/effective?key=acme-retail"))
    assert "default tier" in page(client.get("/tenant/effective?key=who%20ever"))


def reserve(percent: int) -> None:
    edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=600,
        window_s=60,
        burst=1,
        failure_policy=FailurePolicy.RESERVED,
        reserved_percent=percent,
        expected_version=None,
        reason="Half of it is always theirs",
        actor=ADA,
    )


def test_the_part_spent_without_redis_is_edited_where_a_quota_has_one(log_in: Any) -> None:
    client = log_in("ada")
    assert "reserved_percent" not in page(client.get(PATH))
    reserve(50)
    shown = page(client.get(PATH))
    assert 'name="reserved_percent" value="50"' in shown
    assert client.post(PATH, form(reserved_percent="0", version="2")).status_code == 302
    assert TenantQuota.objects.get().reserved_percent == 0
    # A form without the field keeps the value; an empty field restores the fleet's default.
    assert client.post(PATH, form(version="3")).status_code == 302
    assert TenantQuota.objects.get().reserved_percent == 0
    values = page(client.get("/tenant/effective?key=acme-retail"))
    assert "reserved_percent" in values
    assert client.post(PATH, form(reserved_percent="", version="4")).status_code == 302
    assert TenantQuota.objects.get().reserved_percent == -1
    assert "the fleet default" in page(client.get(PATH))
    for wrong in ("101", "-1", "half"):
        shown = page(client.post(PATH, form(reserved_percent=wrong, version="5")), 422)
        assert 'id="f-reserved_percent_error"' in shown
        assert f'value="{wrong}"' in shown


def test_earlier_changes_include_plans_and_rollbacks(log_in: Any) -> None:
    from controlplane.editing.edits.rollback import rollback
    from controlplane.editing.plans import apply_plan, plan_from_document
    from controlplane.policies.models import Environment

    common: dict[str, Any] = {
        "environment": "production",
        "actor": Actor(name="pipeline", role="admin", origin="api"),
    }
    before = Environment.objects.get(pk="production").revision
    document = {"tenants": {"acme-retail": {"tier": "free"}, "others": {"tier": "free"}}}
    plan = plan_from_document(document)
    made = apply_plan(plan=plan, expected_revision=before, reason="They pay less now", **common)
    rollback(to_revision=before, expected_revision=made, reason="They pay again", **common)
    shown = page(log_in("ada").get("/tenant?key=acme-retail&quota=requests"))
    shown = shown[shown.index('id="history"') :]
    assert "They pay less now" in shown
    assert '<span class="was">tier pro</span>' in shown
    assert "tier free" in shown
    assert shown.index("They pay again") < shown.index("They pay less now")
