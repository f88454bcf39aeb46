"""A revert undoes what one revision changed, and keeps what was changed since."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.merge import WHOLE, merge, units
from controlplane.policies.models import Environment, Revision, Tenant, TenantQuota
from controlplane.policies.state import read_state
from tests.controlplane.calling import API, problem

WHY: dict[str, Any] = {"environment": "production", "reason": "for a test"}


def quota(ada: Any, limit: int, tenant: str = "acme", **more: Any) -> int:
    values = {"window_s": 60, "burst": 10, "quota": "requests", **more}
    return edits.set_tenant_quota(
        tenant=tenant, limit=limit, expected_version=None, actor=ada, **WHY, **values
    )


def revert(ada: Any, number: int, **more: Any) -> Any:
    return edits.revert(number=number, actor=ada, **{"expected_revision": None, **WHY, **more})


def head() -> int:
    return Environment.objects.get(pk="production").revision


def acme() -> dict[str, Any]:
    return read_state("production", tenants=["acme"])["tenant", "acme"]


def test_reverting_the_last_revision_restores_the_state_before_it(production: str, ada: Any) -> None:
    before = read_state("production", tenants=["acme"])
    number = quota(ada, 250)
    found = revert(ada, number)
    assert read_state("production", tenants=["acme"]) == before
    assert [(unit.name, unit.unit) for unit in found.reverted] == [("acme", "quotas.requests")]
    assert Revision.objects.get(number=found.revision).reverts == number
    assert found.revision == head() == number + 1


def test_a_later_edit_of_another_unit_stays(production: str, ada: Any) -> None:
    quota(ada, 250)
    number = quota(ada, 300)
    edits.suspend_tenant(tenant="acme", actor=ada, **WHY)
    quota(ada, 300, shadow=True)
    revert(ada, number)
    now = acme()
    assert now["quotas.requests.limit"] == 250
    assert now["suspended"]
    assert now["quotas.requests.shadow"]


def test_a_rate_that_was_changed_since_is_kept_and_named(production: str, ada: Any) -> None:
    quota(ada, 250)
    number = quota(ada, 300)
    # Only the window: the old limit with the new window would be a rate that no person chose.
    later = quota(ada, 300, window_s=30)
    found = revert(ada, number)
    assert not found.reverted
    assert not found.changes
    [kept] = found.kept
    assert (kept.unit, kept.revision, kept.by) == ("quotas.requests:rate", later, "ada")
    assert kept.fields["quotas.requests.limit"] == (300, 250)
    assert head() == later
    with pytest.raises(EditConflict, match=f"version {number}"):
        revert(ada, number, on_conflict="fail")
    revert(ada, number, on_conflict="overwrite")
    assert (acme()["quotas.requests.limit"], acme()["quotas.requests.window_s"]) == (250, 60)


def test_reverting_twice_writes_nothing(production: str, ada: Any) -> None:
    number = quota(ada, 250)
    made = revert(ada, number).revision
    again = revert(ada, number)
    assert (again.revision, again.changes, head()) == (made, [], made)
    assert again.already


def test_a_created_thing_is_removed_unless_it_is_in_use(production: str, ada: Any) -> None:
    number = edits.create_tier(tier="gold", title="Gold", priority=70, actor=ada, **WHY)
    edits.change_tier(tenant="acme", tier="gold", expected_version=None, actor=ada, **WHY)
    with pytest.raises(InvalidEdit, match="Tenant acme still has this tier"):
        revert(ada, number)
    edits.change_tier(tenant="acme", tier="pro", expected_version=None, actor=ada, **WHY)
    revert(ada, number)
    assert ("tier", "gold") not in read_state("production")


def test_a_removed_tenant_returns(production: str, ada: Any) -> None:
    quota(ada, 250)
    before = acme()
    number = edits.remove_tenant(tenant="acme", actor=ada, **WHY)
    revert(ada, number)
    assert acme() == before
    assert Tenant.objects.get(key="acme").version > 1


def test_a_removed_tenant_whose_tier_is_gone_is_refused(production: str, ada: Any) -> None:
    edits.create_tier(tier="gold", title="Gold", priority=70, actor=ada, **WHY)
    edits.create_tenant(tenant="rich", tier="gold", actor=ada, **WHY)
    number = edits.remove_tenant(tenant="rich", actor=ada, **WHY)
    made = Revision.objects.get(target="gold").number
    revert(ada, made)
    with pytest.raises(InvalidEdit, match="There is no tier 'gold'"):
        revert(ada, number)


def test_a_template_takes_its_followers_back(production: str, ada: Any) -> None:
    values = {"limit": 100, "window_s": 60, "burst": 1}
    edits.set_template(template="standard", expected_version=None, actor=ada, **values, **WHY)
    edits.set_tenant_quota(
        tenant="acme", quota="requests", template="standard", expected_version=None, actor=ada, **WHY
    )
    before = read_state("production", tenants=["acme"])
    number = edits.set_template(template="standard", limit=500, expected_version=None, actor=ada, **WHY)
    assert acme()["quotas.requests.limit"] == 500
    revert(ada, number, things={("template", "standard"): ()})
    assert read_state("production", tenants=["acme"]) == before


def test_a_temporary_quota_that_would_be_over_is_not_restored(production: str, ada: Any) -> None:
    quota(ada, 250, expires_at=timezone.now() + timedelta(hours=1))
    number = quota(ada, 300)
    past = timezone.now() - timedelta(minutes=1)
    with_past = Revision.objects.get(number=number).changes.get()
    assert "quotas.requests.expires_at" in with_past.before
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE policies_change DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE policies_change SET before ="
            " jsonb_set(before, '{quotas.requests.expires_at}', to_jsonb(%s::text)) WHERE id = %s",
            [past.isoformat(), with_past.pk],
        )
        cursor.execute("ALTER TABLE policies_change ENABLE TRIGGER USER")
    found = revert(ada, number)
    assert [(unit.unit, unit.revision) for unit in found.kept] == [("quotas.requests:rate", None)]
    assert TenantQuota.objects.get(tenant__key="acme").limit == 300


def test_only_the_chosen_things_and_units_are_reverted(production: str, ada: Any) -> None:
    edits.create_tenant(tenant="globex", tier="free", actor=ada, **WHY)
    for tenant in ("acme", "globex"):
        quota(ada, 100, tenant)
    number = edits.bulk_edit(
        filter=edits.TenantFilter(everybody=True),
        change=edits.TenantChange(tier="free", suspended=True, scale_percent={"requests": 200}),
        expected_revision=None,
        actor=ada,
        **WHY,
    )
    revert(ada, number, things={("tenant", "acme"): ["suspended", "quotas.requests:rate"]})
    state = read_state("production", tenants=["acme", "globex"])
    mine, other = state["tenant", "acme"], state["tenant", "globex"]
    assert (mine["suspended"], mine["tier"], mine["quotas.requests.limit"]) == (False, "free", 100)
    assert (other["suspended"], other["quotas.requests.limit"]) == (True, 200)
    with pytest.raises(InvalidEdit, match="did not change tenant 'nobody'"):
        revert(ada, number, things={("tenant", "nobody"): ()})
    with pytest.raises(InvalidEdit, match="has no unit 'colour'"):
        revert(ada, number, things={("tenant", "acme"): ["colour"]})


def test_one_unit_of_a_created_or_removed_thing_is_not_reverted_alone(production: str, ada: Any) -> None:
    made = edits.create_tenant(tenant="new", tier="free", actor=ada, **WHY)
    found = revert(ada, made, things={("tenant", "new"): ["tier"]})
    assert (found.changes, Tenant.objects.get(key="new").deleted) == ([], False)
    gone = edits.remove_tenant(tenant="acme", actor=ada, **WHY)
    assert not revert(ada, gone, things={("tenant", "acme"): ["title"]}).changes
    assert Tenant.objects.get(key="acme").deleted


def test_the_rate_of_a_template_is_one_unit(production: str, ada: Any) -> None:
    common: dict[str, Any] = {"template": "standard", "expected_version": None, "actor": ada, **WHY}
    edits.set_template(limit=100, window_s=60, burst=1, **common)
    number = edits.set_template(limit=200, **common)
    later = edits.set_template(window_s=1, **common)
    found = revert(ada, number)
    assert [(unit.unit, unit.revision) for unit in found.kept] == [("rate", later)]
    assert not found.changes


def test_an_edit_after_the_preview_is_a_conflict_only_if_it_touches_the_same_thing(
    production: str, ada: Any
) -> None:
    edits.create_tenant(tenant="globex", tier="free", actor=ada, **WHY)
    number = quota(ada, 250)
    seen = head()
    quota(ada, 7, "globex")
    revert(ada, number, expected_revision=seen)
    number = quota(ada, 300)
    edits.suspend_tenant(tenant="acme", actor=ada, **WHY)
    with pytest.raises(EditConflict) as conflict:
        revert(ada, number, expected_revision=number)
    assert conflict.value.changed == {"tenant acme": "suspended"}


def test_an_override_or_an_unknown_revision_is_refused_with_a_reason(
    production: str, ada: Any, hour: Any
) -> None:
    from controlplane.breakers.overrides import override_breaker
    from fuseboard.contract.words import OverrideMode

    override_breaker(dependency="openai", mode=OverrideMode.FORCED_OPEN, expires_at=hour, actor=ada, **WHY)
    with pytest.raises(InvalidEdit, match="changed no configuration"):
        revert(ada, head())
    with pytest.raises(InvalidEdit, match="created the environment"):
        revert(ada, 1)
    with pytest.raises(NotFound):
        revert(ada, 10_000)


def test_a_revert_of_a_revert_and_of_a_rollback(production: str, ada: Any) -> None:
    number = quota(ada, 250)
    undone = revert(ada, number).revision
    revert(ada, undone)
    assert acme()["quotas.requests.limit"] == 250
    back = edits.rollback(to_revision=number - 1, expected_revision=None, actor=ada, **WHY)
    revert(ada, back)
    assert acme()["quotas.requests.limit"] == 250


def test_the_audit_names_the_thing_and_the_fields(production: str, ada: Any) -> None:
    quota(ada, 250)
    number = quota(ada, 300)
    revert(ada, number)
    entry = Entry.objects.latest("id")
    assert (entry.action, entry.target_kind, entry.target_name) == ("revision.reverted", "tenant", "acme")
    assert (entry.before["quotas.requests.limit"], entry.after["quotas.requests.limit"]) == (300, 250)


def test_where_edits_need_approval_a_revert_becomes_a_request(production: str, ada: Any) -> None:
    from controlplane.approvals.models import Rule
    from controlplane.approvals.proposals import Proposed

    number = quota(ada, 250)
    Rule.objects.create(environment="production", needed=1)
    with pytest.raises(Proposed):
        revert(ada, number)
    request = ChangeRequest.objects.get()
    assert (request.reverts, request.action) == (number, "revision.reverted")
    assert acme()["quotas.requests.limit"] == 250


def test_the_api_previews_and_reverts(call: Any, ada: Any) -> None:
    quota(ada, 250)
    number = quota(ada, 300)
    path = f"{API}/revisions/{number}/revert"
    body = {"reason": "launch is over", "expected_revision": number}
    shown = call("admin", "POST", f"{path}/preview", body).json()
    assert shown["reverted"][0]["fields"] == {"quotas.requests.limit": [300, 250]}
    assert head() == number
    problem(call("viewer", "POST", path, body), 403)
    problem(call("admin", "POST", path, {"reason": "launch is over"}), 428)
    made = call("admin", "POST", path, body)
    assert made.status_code == 200, made.content
    assert acme()["quotas.requests.limit"] == 250
    assert call("admin", "GET", f"{API}/revisions/{made.json()['revision']}").json()["reverts"] == number


_NUMBERS = st.integers(0, 3)
_LIMITS = st.dictionaries(
    st.sampled_from(["quotas.a", "quotas.b"]), st.tuples(_NUMBERS, _NUMBERS, st.booleans()), max_size=2
)
_THINGS = st.builds(
    lambda limits, title: {
        "title": title,
        **{f"{name}.limit": values[0] for name, values in limits.items()},
        **{f"{name}.window_s": values[1] for name, values in limits.items()},
        **{f"{name}.shadow": values[2] for name, values in limits.items()},
    },
    _LIMITS,
    st.sampled_from("xyz"),
)
_STATES = st.none() | _THINGS


def test_units_of_limits_whose_names_have_dots_are_apart() -> None:
    one = {"quotas.api.limit": 1, "quotas.api.window_s": 1, "quotas.api.shadow": True}
    two = {**one, "quotas.api.rate.limit": 5, "quotas.api.shadow.limit": 7}
    assert units((one, two)) == {
        "quotas.api.rate": ["quotas.api.rate.limit"],
        "quotas.api.shadow": ["quotas.api.shadow.limit"],
        "quotas.api:rate": ["quotas.api.limit", "quotas.api.window_s"],
        "quotas.api:shadow": ["quotas.api.shadow"],
    }


@given(_STATES, _STATES)
def test_merging_a_change_into_its_base_gives_what_is_wanted(base: Any, wanted: Any) -> None:
    merged = merge(base, wanted, base)
    assert merged.fields == wanted
    assert not merged.kept


@given(_STATES, _STATES, _STATES)
def test_a_merge_takes_each_unit_whole_from_one_side(base: Any, wanted: Any, now: Any) -> None:
    merged = merge(base, wanted, now)
    if merged.fields is None or WHOLE in merged.applied:
        return
    pairs = {
        (fields.get("quotas.a.limit"), fields.get("quotas.a.window_s")) for fields in (wanted, now) if fields
    }
    assert (merged.fields.get("quotas.a.limit"), merged.fields.get("quotas.a.window_s")) in pairs


@given(_THINGS, _LIMITS, st.sampled_from("xyz"))
def test_reverts_of_edits_of_different_units_commute(start: Any, limits: Any, title: str) -> None:
    one = {**start, "title": title}
    two = {"title": title, **{f"{name}.limit": values[0] for name, values in limits.items()}}
    title_first = merge(two, one, merge(one, start, two).fields).fields
    limits_first = merge(one, start, merge(two, one, two).fields).fields
    assert title_first == limits_first == start


def _end_in_the_past(number: int) -> None:
    """Let the quota that a revision removed or replaced have ended a minute ago."""
    past = timezone.now() - timedelta(minutes=1)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE policies_change DISABLE TRIGGER USER")
        cursor.execute(
            "UPDATE policies_change SET before ="
            " jsonb_set(before, '{quotas.requests.expires_at}', to_jsonb(%s::text)) WHERE id = %s",
            [past.isoformat(), Revision.objects.get(number=number).changes.get().pk],
        )
        cursor.execute("ALTER TABLE policies_change ENABLE TRIGGER USER")


@pytest.mark.parametrize("lasting", [None, 40])
def test_a_removed_tenant_returns_without_the_temporary_quota_that_is_over(
    production: str, ada: Any, lasting: int | None
) -> None:
    if lasting:
        quota(ada, lasting)
    quota(ada, 250, expires_at=timezone.now() + timedelta(hours=1), failure_policy="fail_closed")
    number = edits.remove_tenant(tenant="acme", actor=ada, **WHY)
    _end_in_the_past(number)
    revert(ada, number)
    limits = [row.limit for row in TenantQuota.objects.filter(tenant__key="acme", tenant__deleted=False)]
    assert limits == ([lasting] if lasting else [])
    assert Tenant.objects.filter(key="acme", deleted=False).exists()


def test_a_limit_that_follows_its_template_is_kept_and_not_reported_as_reverted(
    production: str, ada: Any
) -> None:
    values = {"window_s": 60, "burst": 10, "expected_version": None, "actor": ada}
    edits.set_template(template="standard", limit=200, **values, **WHY)
    edits.set_tenant_quota(
        tenant="acme", quota="requests", template="standard", expected_version=None, actor=ada, **WHY
    )
    number = edits.set_template(template="standard", limit=100, **values, **WHY)
    found = revert(ada, number, things={("tenant", "acme"): ()})
    assert (found.reverted, found.changes) == ([], [])
    assert [(unit.unit, unit.template, unit.over) for unit in found.kept] == [
        ("quotas.requests", "standard", False)
    ]
    assert head() == number


def test_a_quota_that_waits_for_its_end_does_not_keep_others_from_being_reverted(
    production: str, ada: Any
) -> None:
    quota(ada, 250, expires_at=timezone.now() + timedelta(hours=1))
    number = edits.suspend_tenant(tenant="acme", actor=ada, **WHY)
    TenantQuota.objects.update(expires_at=timezone.now() - timedelta(seconds=5))
    revert(ada, number)
    assert not acme()["suspended"]


def test_who_changed_it_is_looked_up_for_a_bounded_number_of_units(
    production: str, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits.create_tenant(tenant="globex", tier="free", actor=ada, **WHY)
    number = edits.bulk_edit(
        filter=edits.TenantFilter(everybody=True),
        change=edits.TenantChange(suspended=True),
        expected_revision=None,
        actor=ada,
        **WHY,
    )
    for tenant in ("acme", "globex"):
        edits.remove_tenant(tenant=tenant, actor=ada, **WHY)
    monkeypatch.setitem(edits.preview_revert.__globals__, "_EXPLAINED", 1)
    found = edits.preview_revert(environment="production", number=number)
    assert [bool(unit.revision) for unit in found.kept] == [True, False]
    assert not any(unit.over for unit in found.kept)
    with pytest.raises(EditConflict):
        revert(ada, number, on_conflict="fail")
