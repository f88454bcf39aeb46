"""One edit of one thing: only typed values change, and two people conflict unit by unit."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.approvals.models import Rule
from controlplane.approvals.proposals import Proposed
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.edits import edit_entity
from controlplane.editing.edits.edit_entity import EntityEdit, UnitConflict, preview_edit, save_edit
from controlplane.editing.edits.expiry import expire_quotas
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.models import Environment, TenantQuota, Tier, TierQuota
from controlplane.policies.state import read_state
from tests.people import BOB

WHY: dict[str, Any] = {"reason": "for a test"}


def head() -> int:
    return Environment.objects.get(pk="production").revision


def tier_edit(typed: dict[str, Any], *, base: int | None = -1, name: str = "pro", **more: Any) -> EntityEdit:
    return EntityEdit(
        environment="production",
        kind="tier",
        name=name,
        typed=typed,
        base=head() if base == -1 else base,
        **more,
    )


def save(edit: EntityEdit, ada: Any, **more: Any) -> int:
    return save_edit(edit, actor=ada, **WHY, **more)


def bob_sets(quota: str = "requests", **values: Any) -> int:
    return edits.set_tier_quota(
        environment="production", tier="pro", quota=quota, expected_version=None, actor=BOB, **WHY, **values
    )


def tenant_edit(quotas: dict[str, Any], *, base: int, **more: Any) -> EntityEdit:
    typed = {"quotas": quotas, **more}
    return EntityEdit(environment="production", kind="tenant", name="acme", typed=typed, base=base)


@pytest.fixture
def pro(production: str, ada: Any) -> str:
    bob_sets(limit=600, window_s=60, burst=100)
    return production


def test_only_typed_values_change(pro: str, ada: Any) -> None:
    before = read_state(pro)["tier", "pro"]
    save(tier_edit({"priority": 20, "quotas": {"requests": {"limit": 900}}}), ada)
    after = read_state(pro)["tier", "pro"]
    assert {field for field in before if before[field] != after[field]} == {
        "priority",
        "quotas.requests.limit",
    }
    entry = Entry.objects.latest("id")
    assert (entry.action, entry.target_kind, entry.target_name) == ("tier.set", "tier", "pro")
    assert entry.after["version"] == Tier.objects.get(name="pro").version


def test_two_people_who_edit_different_units_do_not_conflict(pro: str, ada: Any) -> None:
    base = head()
    bob_sets("uploads", limit=5, window_s=60, burst=5)
    edit = tier_edit({"quotas": {"requests": {"limit": 900}}}, base=base)
    [theirs] = preview_edit(edit).theirs
    assert (theirs.unit, theirs.by, theirs.conflicts) == ("quotas.uploads", "bob", False)
    save(edit, ada)
    fields = read_state(pro)["tier", "pro"]
    assert (fields["quotas.requests.limit"], fields["quotas.uploads.limit"]) == (900, 5)


def test_two_people_who_edit_one_rate_conflict_until_one_replaces_it(pro: str, ada: Any) -> None:
    base = head()
    bob_sets(limit=600, window_s=30, burst=100)
    edit = tier_edit({"quotas": {"requests": {"limit": 900}}}, base=base)
    with pytest.raises(UnitConflict) as conflict:
        save(edit, ada)
    assert conflict.value.by == "bob"
    assert conflict.value.changed == {"quotas.requests.window_s": 30}
    assert TierQuota.objects.get(tier__name="pro").limit == 600
    save(edit, ada, replace=["quotas.requests:rate"])
    row = TierQuota.objects.get(tier__name="pro")
    assert (row.limit, row.window_s) == (900, 60)


def test_what_replaces_a_rate_is_the_whole_rate_that_the_person_saw(pro: str, ada: Any) -> None:
    acme: dict[str, Any] = {"environment": pro, "tenant": "acme", "quota": "requests"}
    common: dict[str, Any] = {"expected_version": None, "actor": BOB, **WHY}
    edits.set_tenant_quota(**acme, **common, limit=600, window_s=60, burst=100)
    base = head()
    ends = timezone.now() + timedelta(days=1)
    edits.set_tenant_quota(
        **acme, **common, limit=600, window_s=3_600, burst=100, shadow=True, expires_at=ends
    )
    edit = tenant_edit({"requests": {"limit": 900}}, base=base)
    found = preview_edit(edit)
    assert [each.unit for each in found.theirs if each.conflicts] == ["quotas.requests:rate"]
    assert (found.after or {})["quotas.requests.window_s"] == 60
    save(edit, ada, replace=["quotas.requests:rate"], seen=head())
    row = TenantQuota.objects.get(tenant__key="acme")
    assert (row.limit, row.window_s, row.expires_at, row.returns_to) == (900, 60, None, None)
    assert row.shadow


def test_the_same_limit_in_another_window_is_a_conflict(pro: str, ada: Any) -> None:
    base = head()
    bob_sets(limit=900, window_s=3_600, burst=100)
    edit = tier_edit({"quotas": {"requests": {"limit": 900}}}, base=base)
    with pytest.raises(UnitConflict):
        save(edit, ada)
    save(edit, ada, replace=["quotas.requests:rate"])
    assert TierQuota.objects.get(tier__name="pro").window_s == 60


def test_a_quota_that_both_added_is_replaced_as_a_whole(pro: str, ada: Any) -> None:
    base = head()
    bob_sets("uploads", limit=5, window_s=3_600, burst=1, shadow=True, warn_percent=50)
    edit = tier_edit({"quotas": {"uploads": {"limit": 9, "window_s": 60}}}, base=base)
    with pytest.raises(UnitConflict):
        save(edit, ada)
    save(edit, ada, replace=["quotas.uploads"])
    row = TierQuota.objects.get(name="uploads")
    assert (row.limit, row.window_s, row.shadow, row.warn_percent) == (9, 60, False, 0)


def test_a_quota_of_the_tier_that_changed_meanwhile_is_a_conflict(pro: str, ada: Any) -> None:
    base = head()
    bob_sets(failure_policy="fail_closed")
    edit = tenant_edit({"requests": {"limit": 900, "window_s": 60, "failure_policy": "fail_open"}}, base=base)
    with pytest.raises(UnitConflict) as conflict:
        save(edit, ada)
    [theirs] = conflict.value.theirs
    assert (theirs.unit, theirs.by) == ("quotas.requests", "bob")
    assert theirs.fields == {"quotas.requests.failure_policy of tier pro": ("fail_open", "fail_closed")}
    with pytest.raises(UnitConflict):
        save(edit, ada, replace=["quotas.requests"], seen=head() - 1)
    save(edit, ada, replace=["quotas.requests"], seen=head())
    assert TenantQuota.objects.get().failure_policy == "fail_open"


def test_a_quota_of_another_tier_than_shown_is_a_conflict(pro: str, ada: Any) -> None:
    base = head()
    edits.change_tier(environment=pro, tenant="acme", tier="free", expected_version=None, actor=BOB, **WHY)
    quotas = {"requests": {"limit": 900, "window_s": 60}}
    with pytest.raises(UnitConflict) as conflict:
        save(tenant_edit(quotas, base=base), ada)
    assert "quotas.requests" in [each.unit for each in conflict.value.theirs]
    # Quotas that the tier does not have, or that did not change, do not conflict.
    save(tenant_edit({"exports": {"limit": 9, "window_s": 60}}, base=base), ada)
    save(tenant_edit(quotas, base=head()), ada)
    assert {row.name for row in TenantQuota.objects.all()} == {"exports", "requests"}


def test_a_temporary_quota_that_ended_meanwhile_is_not_written_back(
    pro: str, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"limit": 600, "window_s": 60, "burst": 100}
    ends = timezone.now() + timedelta(hours=1)
    edits.set_tenant_quota(
        environment=pro,
        tenant="acme",
        quota="requests",
        expires_at=ends,
        expected_version=None,
        actor=BOB,
        **WHY,
        **values,
    )
    base = head()
    monkeypatch.setattr(timezone, "now", lambda: ends + timedelta(minutes=1))
    assert expire_quotas() == [(pro, "acme", "requests")]
    edit = tenant_edit({"requests": {"limit": 900}}, base=base)
    with pytest.raises(InvalidEdit) as refused:
        save(edit, ada, replace=["quotas.requests"])
    assert refused.value.errors.keys() == {"tenants.acme.quotas.requests.expires_at"}
    assert not TenantQuota.objects.exists()
    for end in ("", (ends + timedelta(days=1)).isoformat()):
        edit = tenant_edit({"requests": {"limit": 900, "expires_at": end}}, base=base)
        with pytest.raises(UnitConflict):
            save(edit, ada)
    save(edit, ada, replace=["quotas.requests"])
    assert TenantQuota.objects.get().expires_at == ends + timedelta(days=1)


def test_a_conflict_found_inside_the_revision_names_the_newest_revision(
    pro: str, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = tier_edit({"quotas": {"requests": {"limit": 900}}})
    preview = edit_entity.preview_edit

    def slow(*given: Any, **more: Any) -> Any:
        found = preview(*given, **more)
        monkeypatch.setattr(edit_entity, "preview_edit", preview)
        bob_sets(limit=700, window_s=60, burst=100)
        return found

    monkeypatch.setattr(edit_entity, "preview_edit", slow)
    with pytest.raises(UnitConflict) as conflict:
        save(edit, ada)
    assert conflict.value.current_version == head()


def test_a_change_after_the_decision_to_replace_is_a_conflict_again(pro: str, ada: Any) -> None:
    base = head()
    seen = bob_sets(limit=700, window_s=60, burst=100)
    bob_sets(limit=1, window_s=60, burst=1)
    edit = tier_edit({"quotas": {"requests": {"limit": 900}}}, base=base)
    with pytest.raises(UnitConflict):
        save(edit, ada, replace=["quotas.requests:rate"], seen=seen)
    save(edit, ada, replace=["quotas.requests:rate"], seen=head())


def test_a_quota_that_another_person_removed_is_a_conflict_and_returns_whole(pro: str, ada: Any) -> None:
    base = head()
    edits.set_tier_quota(
        environment=pro, tier="pro", quota="requests", shadow=True, expected_version=None, actor=BOB, **WHY
    )
    base = head()
    edits.remove_tier_quota(
        environment=pro, tier="pro", quota="requests", expected_version=None, actor=BOB, **WHY
    )
    edit = tier_edit({"quotas": {"requests": {"limit": 900}}}, base=base)
    with pytest.raises(UnitConflict) as conflict:
        save(edit, ada)
    assert [each.unit for each in conflict.value.theirs] == ["quotas.requests"]
    save(edit, ada, replace=["quotas.requests"])
    row = TierQuota.objects.get(tier__name="pro")
    assert (row.limit, row.burst, row.shadow) == (900, 100, True)


def test_removing_a_quota_that_another_person_removed_changes_nothing(pro: str, ada: Any) -> None:
    base = head()
    number = edits.remove_tier_quota(
        environment=pro, tier="pro", quota="requests", expected_version=None, actor=BOB, **WHY
    )
    assert save(tier_edit({}, removed=("requests",), base=base), ada) == number


def test_a_page_from_before_a_restored_backup_is_refused(pro: str, ada: Any) -> None:
    with pytest.raises(InvalidEdit, match="restored from a backup"):
        save(tier_edit({"priority": 9}, base=head() + 5), ada)


def test_the_same_value_typed_by_both_is_no_conflict(pro: str, ada: Any) -> None:
    base = head()
    bob_sets(limit=900, window_s=60, burst=100)
    number = head()
    assert save(tier_edit({"quotas": {"requests": {"limit": 900}}}, base=base), ada) == number


def test_a_limit_is_added_and_removed(pro: str, ada: Any) -> None:
    save(tier_edit({"quotas": {"uploads": {"limit": 5, "window_s": 60}}}, removed=("requests",)), ada)
    assert [row.name for row in TierQuota.objects.filter(tier__name="pro")] == ["uploads"]
    with pytest.raises(InvalidEdit, match="There is no limit 'requests'"):
        save(tier_edit({}, removed=("requests",)), ada)


def test_a_thing_is_created_and_removed_once(pro: str, ada: Any) -> None:
    new = tier_edit({"title": "Gold", "priority": 80}, name="gold", base=None)
    save(new, ada)
    entry = Entry.objects.latest("id")
    assert entry.action == "tier.created"
    assert entry.after["version"] == Tier.objects.get(name="gold").version
    with pytest.raises(InvalidEdit, match="already exists"):
        save(new, ada)
    remove: dict[str, Any] = {"environment": pro, "kind": "tier", "name": "gold", "actor": ada, **WHY}
    edits.create_tenant(environment=pro, tenant="rich", tier="gold", actor=ada, **WHY)
    with pytest.raises(InvalidEdit, match="Tier gold still has tenants, such as rich"):
        edits.remove_entity(**remove)
    edits.change_tier(environment=pro, tenant="rich", tier="pro", expected_version=None, actor=ada, **WHY)
    edits.remove_entity(**remove)
    with pytest.raises(NotFound):
        edits.remove_entity(**remove)
    with pytest.raises(NotFound):
        save(tier_edit({"priority": 1}, name="gold"), ada)


def test_a_dependency_whose_calls_a_quota_counts_is_not_removed(pro: str, ada: Any) -> None:
    remove: dict[str, Any] = {
        "environment": pro,
        "kind": "dependency",
        "name": "openai",
        "actor": ada,
        **WHY,
    }
    common: dict[str, Any] = {"environment": pro, "expected_version": None, "actor": ada, **WHY}
    numbers = {"limit": 5, "window_s": 60, "burst": 5}
    edits.set_tenant_quota(tenant="acme", quota="ai", dependency="openai", **common, **numbers)
    with pytest.raises(InvalidEdit, match="Quota ai of tenant acme"):
        edits.remove_entity(**remove)
    edits.remove_tenant_quota(tenant="acme", quota="ai", **common)
    edits.set_tier_quota(tier="pro", quota="ai", dependency="openai", **common, **numbers)
    with pytest.raises(InvalidEdit, match="Quota ai of tier pro"):
        edits.remove_entity(**remove)
    edits.remove_tier_quota(tier="pro", quota="ai", **common)
    edits.remove_entity(**remove)


def test_the_environment_and_its_limits_are_edited(pro: str, ada: Any) -> None:
    edit = EntityEdit(
        environment=pro,
        kind="environment",
        name=pro,
        typed={
            "default_tier": "pro",
            "tuning": {"ramp_ms": 9_000},
            "subject_limits": {"by-ip": {"limit": 5, "window_s": 60, "per": ["ip"]}},
        },
        base=head(),
    )
    save(edit, ada)
    fields = read_state(pro)["environment", pro]
    assert (fields["default_tier"], fields["tuning.ramp_ms"]) == ("pro", 9_000)
    assert fields["subject_limits.by-ip.limit"] == 5


def test_where_edits_need_approval_it_becomes_a_request(pro: str, ada: Any) -> None:
    Rule.objects.create(environment=pro, needed=1)
    with pytest.raises(Proposed) as proposed:
        save(tier_edit({"priority": 20}), ada)
    assert proposed.value.request.action == "tier.set"
    assert Tier.objects.get(name="pro").priority != 20


def test_wrong_values_name_their_field_and_write_nothing(pro: str, ada: Any) -> None:
    number = head()
    with pytest.raises(InvalidEdit) as wrong:
        save(tier_edit({"priority": 200, "quotas": {"requests": {"limit": -1}}}), ada)
    assert {"tiers.pro.priority", "tiers.pro.quotas.requests.limit"} <= wrong.value.errors.keys()
    with pytest.raises(InvalidEdit, match="Say why"):
        save_edit(tier_edit({"priority": 20}), reason="x", actor=ada)
    assert head() == number


def test_a_tier_that_another_person_changed_since_is_not_removed(pro: str, ada: Any) -> None:
    made = save(tier_edit({"priority": 1}, name="gold", base=None), ada)
    save(tier_edit({"priority": 2}, name="gold"), BOB)
    remove: dict[str, Any] = {"environment": pro, "kind": "tier", "name": "gold", "actor": ada, **WHY}
    with pytest.raises(EditConflict) as refused:
        edits.remove_entity(base=made, **remove)
    assert refused.value.by == BOB.name
    with pytest.raises(EditConflict):
        edits.remove_entity(base=head() + 5, **remove)
    edits.remove_entity(base=head(), **remove)


@pytest.mark.parametrize(
    "typed", [{"title": "New"}, {"tier": "pro"}, {"quotas": {"requests": {"limit": 5, "window_s": 60}}}]
)
def test_an_edit_of_a_revision_before_its_tenant_conflicts(pro: str, ada: Any, typed: dict[str, Any]) -> None:
    before = head()
    edits.create_tenant(environment=pro, tenant="newco", tier="pro", title="Newco", actor=BOB, **WHY)
    edit = EntityEdit(environment=pro, kind="tenant", name="newco", typed=typed, base=before)
    assert {each.unit for each in preview_edit(edit).theirs} >= {"title", "tier"}
