"""Tenants that are selected in the list are edited together, as one revision."""

from typing import Any

import pytest
from editor_steps import bulk_shown

from controlplane.phrases import window_words
from controlplane.policies.models import Revision, Tenant, TenantQuota, TierQuota
from dashboard.views.tenants.bulk import MAX_SELECTED

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def many(production: str) -> list[str]:
    one = Tenant.objects.get(key="acme-retail")
    keys = [f"shop-{number}" for number in range(4)]
    Tenant.objects.bulk_create(
        Tenant(environment=one.environment, key=key, tier=one.tier, changed_revision=1) for key in keys
    )
    return keys


def test_only_what_was_selected_changes(log_in: Any, many: list[str]) -> None:
    client = log_in("ada")
    shown = client.get("/tenants/bulk", {"b": ["shop-1", "shop-2"]}).content.decode()
    assert "2 selected" in shown
    assert "Id starts with" not in shown
    typed = {"b": ["shop-1", "shop-2"], "what": "suspend", "act": "preview"}
    shown = client.post("/tenants/bulk", typed).content.decode()
    assert "2 tenants would change" in shown
    # An address or a form with other conditions does not widen what was selected.
    saving = typed | {"act": "save", "reason": "CHG-4821", "everybody": "1"}
    saving |= bulk_shown(client, saving)
    assert client.post("/tenants/bulk", saving).status_code == 302
    assert set(Tenant.objects.filter(suspended=True).values_list("key", flat=True)) == {"shop-1", "shop-2"}
    assert Revision.objects.order_by("-number")[0].changed == 2


def test_a_selection_is_bounded_and_needs_the_right(log_in: Any, many: list[str]) -> None:
    client = log_in("ada")
    shown = client.get("/tenants/bulk", {"b": [f"x{n}" for n in range(MAX_SELECTED + 5)]})
    assert f"{MAX_SELECTED} selected" in shown.content.decode()
    client = log_in("olga")
    assert "bulk-selected" not in client.get("/tenants").content.decode()
    assert client.get("/tenants/bulk", {"b": "shop-1"}).status_code == 403


def test_a_field_of_the_quota_that_is_left_empty_stays_and_what_shrinks_is_amber(
    log_in: Any, many: list[str]
) -> None:
    """The form typed a window of 60 s, the burst became 1, and the preview named neither."""
    client, tier = log_in("ada"), TierQuota.objects.get(tier__name="pro", name="requests")
    form = client.get("/tenants/bulk", {"b": ["shop-1", "shop-2"]}).content.decode()
    for name in ("limit", "window_s", "burst"):
        assert f'name="{name}" value=""' in form, name
    assert "empty: stays as it is" in form
    less = tier.limit - 1
    typed = {"b": ["shop-1", "shop-2"], "what": "quota", "quota": "requests", "limit": str(less)}
    shown = client.post("/tenants/bulk/preview", typed).content.decode()
    words = f"{less:,} per {window_words(tier.window_s)}, burst {tier.burst:,}"
    assert f'<td class="st-word st-warn">{words}' in shown
    saving = typed | {"act": "save", "reason": "CHG-4821"} | bulk_shown(client, typed)
    saved = client.post("/tenants/bulk", saving)
    assert saved.status_code == 302
    for row in TenantQuota.objects.filter(tenant__key__in=("shop-1", "shop-2")):
        assert (row.limit, row.window_s, row.burst) == (less, tier.window_s, tier.burst)
    # Every page that shows the change prints the burst.
    for path in (saved["Location"], "/changes", f"{saved['Location']}/revert", "/tenant?key=shop-1"):
        assert f"burst {tier.burst:,}" in client.get(path).content.decode(), path


@pytest.mark.browser
def test_tenants_are_selected_and_edited_in_the_browser(sign_in: Any, many: list[str]) -> None:
    page = sign_in("ada")
    page.goto("/tenants?q=shop")
    page.check("[name=b][value=shop-1]")
    page.check("[name=b][value=shop-3]")
    assert page.inner_text("#bulk-selected [data-count]") == "2 selected"
    page.click("text=Edit selected tenants")
    # With its scripts: what is chosen earlier draws no preview.
    page.wait_for_url("**/tenants/bulk?*")
    page.select_option("[name=what]", "tier")
    page.select_option("[name=to_tier]", "free")
    page.wait_for_selector("#preview >> text=2 tenants would change")
    page.fill("[name=reason]", "CRM-5581")
    page.click("text=Save changes")
    page.wait_for_url("**/revisions/*")
    moved = Tenant.objects.filter(tier__name="free").values_list("key", flat=True)
    assert set(moved) == {"shop-1", "shop-3"}


@pytest.mark.browser
def test_bulk_edit_takes_the_ticked_tenants_or_the_filter(sign_in: Any, many: list[str]) -> None:
    """The button above the list ignored the ticks, and edited by a filter."""
    page = sign_in("ada")
    page.goto("/tenants?tier=pro")
    page.check("[name=b][value=shop-2]")
    page.click("button:has-text('Bulk edit')")
    page.wait_for_url("**/tenants/bulk?*")
    assert "1 selected" in page.inner_text("#bulk-fields")
    assert page.input_value("#bulk-fields [name=b]") == "shop-2"
    page.goto("/tenants?tier=pro")
    page.click("button:has-text('Bulk edit')")
    page.wait_for_url("**/tenants/bulk?*")
    assert page.input_value("#bulk-fields [name=tier]") == "pro"
