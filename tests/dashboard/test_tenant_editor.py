"""The form of a tenant: quotas of its tier, and temporary quotas."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.editing import edits
from controlplane.policies.models import TenantQuota
from tests.dashboard.editor_steps import ACME, WHY, base_of, head, page, quota
from tests.dashboard.shown import text_of
from tests.people import BOB

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ada(log_in: Any, production: str) -> Any:
    quota()
    return log_in("ada")


def acme_quota(limit: int, **more: Any) -> int:
    return edits.set_tenant_quota(
        environment="production",
        tenant="acme-retail",
        quota="requests",
        limit=limit,
        window_s=60,
        burst=1,
        expected_version=None,
        reason=WHY,
        actor=BOB,
        **more,
    )


def acme_requests() -> TenantQuota:
    return TenantQuota.objects.get(tenant__key="acme-retail", name="requests")


def test_n1_a_quota_of_the_tier_becomes_one_of_the_tenant_by_typing_in_it(ada: Any) -> None:
    quota(600, failure_policy="fail_closed", warn_percent=80)
    shown = page(ada.get(ACME))
    assert "of tier pro; a value that you type makes it a quota of this tenant" in shown
    typed = {"base": base_of(shown), "limit.requests.limit": "900", "reason": WHY}
    preview = text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", typed)))
    assert "requests: 600 per min, burst 100 → 900 per min, burst 100 (+50 %)" in preview
    ada.post(ACME, typed)
    row = acme_requests()
    assert (row.limit, row.burst, row.failure_policy, row.warn_percent) == (900, 100, "fail_closed", 80)
    back = {"base": head(), "keep.requests": "remove", "reason": WHY}
    preview = text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", back)))
    assert "requests: 900 per min, burst 100 → 600 per min, burst 100" in preview
    ada.post(ACME, back)
    assert not TenantQuota.objects.exists()


def test_m12_a_temporary_quota_says_when_it_ends_and_what_applies_then(ada: Any) -> None:
    acme_quota(5)
    ends = (timezone.now() + timedelta(days=1)).replace(second=7)
    acme_quota(50, expires_at=ends)
    shown = page(ada.get(ACME))
    assert f"temporary: ends {ends:%-d %b %H:%M} UTC, then 5 per min" in shown
    typed = {"base": base_of(shown), "limit.requests.expires_at": f"{ends:%Y-%m-%dT%H:%M}"}
    raised = {**typed, "limit.requests.limit": "60", "reason": WHY}
    preview = page(ada.post("/edit/tenant/preview?key=acme-retail", raised))
    assert f"requests is temporary: ends {ends:%-d %b %H:%M} UTC, then 5 per min." in preview
    ada.post(ACME, raised)
    row = acme_requests()
    assert (row.limit, row.expires_at, (row.returns_to or {}).get("limit")) == (60, ends, 5)


def test_m12_a_quota_becomes_temporary_and_permanent_in_the_editor(ada: Any) -> None:
    acme_quota(5)
    ends = (timezone.now() + timedelta(days=1)).replace(second=0, microsecond=0)
    named = "limit.requests.expires_at"
    typed = {"limit.requests.limit": "60", named: f"{ends:%Y-%m-%dT%H:%M}", "reason": WHY}
    wrong = page(ada.post(ACME, {**typed, "base": head(), named: "tomorrow"}), 422)
    assert 'id="f-limit-requests-expires_at_error"' in wrong
    past = page(ada.post(ACME, {**typed, "base": head(), named: "2020-01-01T00:00"}), 422)
    assert "Choose a time in the future." in past
    assert ada.post(ACME, {**typed, "base": head()}).status_code == 302
    row = acme_requests()
    assert (row.limit, row.expires_at, (row.returns_to or {}).get("limit")) == (60, ends, 5)
    assert ada.post(ACME, {"base": head(), named: "", "reason": WHY}).status_code == 302
    row = acme_requests()
    assert (row.limit, row.expires_at, row.returns_to) == (60, None, None)


def test_13_1_the_preview_says_what_a_changed_quota_allows_without_redis(ada: Any) -> None:
    quota(600, failure_policy="local_share")
    acme_quota(60, failure_policy="local_share")
    typed = {"base": head(), "limit.requests.limit": "30", "limit.requests.burst": "7", "reason": WHY}
    for address in ("tenant/preview?key=acme-retail", "tier/preview?key=pro"):
        preview = text_of(page(ada.post(f"/edit/{address}", typed)))
        assert "requests without Redis: Each of 3 pods allows 10 of 30." in preview
    unchanged = {"base": head(), "reason": WHY}
    assert "without Redis" not in text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", unchanged)))
    typed = {"base": head(), "keep.requests": "remove", "reason": WHY}
    assert "without Redis" not in text_of(page(ada.post("/edit/tenant/preview?key=acme-retail", typed)))


def test_13_1_the_preview_of_a_temporary_quota_says_what_it_allows_without_redis(ada: Any) -> None:
    acme_quota(60, failure_policy="fail_closed")
    ends = timezone.now() + timedelta(days=1)
    typed = {"limit.requests.limit": "90", "limit.requests.expires_at": f"{ends:%Y-%m-%dT%H:%M}"}
    preview = text_of(
        page(ada.post("/edit/tenant/preview?key=acme-retail", {**typed, "base": head(), "reason": WHY}))
    )
    assert "requests without Redis:" in preview
