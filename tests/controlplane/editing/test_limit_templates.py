"""Templates: values that many limits follow, changed by one revision."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.edits.expiry import expire_quotas
from controlplane.editing.edits.limit_templates import (
    changed_followers,
    template_plan,
)
from controlplane.editing.plans import (
    PlanErrors,
    apply_plan,
    copy_configuration,
    difference,
    export_csv,
    export_plan,
    read_plan,
)
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.effective import effective
from controlplane.policies.models import Environment, Revision, Template, TenantQuota, TierQuota
from controlplane.policies.state import read_state
from controlplane.policies.template_followers import count_followers, followers
from controlplane.usage.what_if import what_if
from fuseboard.contract.policy import decode_policy
from tests.controlplane.calling import API, problem
from tests.controlplane.publishing.test_publishing import head as published
from tests.controlplane.publishing.test_publishing import record

WHY = {"environment": "production", "reason": "For a test of templates"}


@pytest.fixture
def standard(production: str, ada: Any) -> dict[str, Any]:
    """A template that the quotas of a tier and a tenant, and a limit of a vendor follow."""
    why = WHY | {"actor": ada}
    edits.set_template(
        template="standard",
        title="As most have it",
        limit=100,
        window_s=60,
        burst=20,
        warn_percent=80,
        expected_version=None,
        **why,
    )
    edits.set_tier_quota(tier="pro", quota="requests", template="standard", expected_version=None, **why)
    edits.set_tenant_quota(
        tenant="acme", quota="exports", template="standard", limit=7, expected_version=None, **why
    )
    edits.set_vendor_limit(
        dependency="openai", name="calls", template="standard", expected_version=None, **why
    )
    return why


def policy(text_limits: Any) -> Any:
    return decode_policy(published(text_limits)["policy"].encode())


def version() -> int:
    return Template.objects.get(name="standard").version


def head() -> int:
    return Environment.objects.get(pk="production").revision


def test_one_edit_changes_all_followers_except_their_overrides(
    standard: dict[str, Any], text_limits: Any
) -> None:
    before = head()
    revision = edits.set_template(
        template="standard", limit=250, burst=50, expected_version=version(), **standard
    )
    assert revision == before + 1 == head()
    [quota] = next(tier for tier in policy(text_limits).tiers if tier.name == "pro").quotas
    assert (quota.limit, quota.burst, quota.warn_percent) == (250, 50, 80)
    [own] = record(text_limits, "acme").quotas
    assert (own.name, own.limit, own.burst, own.warn_percent) == ("exports", 7, 50, 80)
    [vendor] = policy(text_limits).dependencies[0].vendor_limits
    assert (vendor.limit, vendor.burst, vendor.algorithm) == (250, 50, "token_bucket")
    kept = {(one.kind, one.name) for one in Revision.objects.get(number=revision).changes.all()}
    assert kept == {
        ("template", "standard"),
        ("tier", "pro"),
        ("tenant", "acme"),
        ("dependency", "openai"),
    }
    [entry] = Entry.objects.filter(revision=revision)
    assert (entry.action, entry.before["limit"], entry.after["limit"]) == ("template.set", 100, 250)


def test_the_title_of_a_template_changes_alone(standard: dict[str, Any]) -> None:
    edits.set_template(template="standard", title="Usual", expected_version=version(), **standard)
    row = Template.objects.get(name="standard")
    assert (row.title, row.limit) == ("Usual", 100)
    with pytest.raises(InvalidEdit, match="Give a value of the limit"):
        edits.set_template(template="standard", expected_version=version(), **standard)


def test_a_preview_lists_the_changed_followers(standard: dict[str, Any]) -> None:
    found = edits.preview_template(environment="production", template="standard", limit=300)
    # Nothing changes for acme, which overrides the value.
    assert str(changed_followers(found, "standard")) == "2 limits of 1 tier and 1 dependency"
    counted = count_followers("production")["standard"]
    assert str(counted) == "3 limits of 1 tier, 1 tenant and 1 dependency"
    [tier, dependency, tenant] = followers("production", "standard", most=9)
    assert (tier.name, dependency.name, tenant.name, tenant.own) == ("pro", "openai", "acme", {"limit": 7})
    replayed = what_if("production", template_plan("standard", limit=1))
    assert replayed.unmeasured == 1  # acme's requests are its tier's


def test_values_given_with_a_template_override_it(standard: dict[str, Any]) -> None:
    quota = TierQuota.objects.get(tier__name="pro", name="requests")
    assert (quota.template, quota.own, quota.limit) == ("standard", [], 100)
    change = {"tier": "pro", "quota": "requests", "expected_version": None, **standard}
    edits.set_tier_quota(limit=40, **change)
    edits.set_tier_quota(burst=4, **change)
    quota.refresh_from_db()
    assert (quota.template, quota.own, quota.limit, quota.burst) == ("standard", ["limit", "burst"], 40, 4)
    # If the template is given again, only values given with it override it.
    edits.set_tier_quota(template="standard", shadow=True, **change)
    quota.refresh_from_db()
    assert (quota.own, quota.limit, quota.burst, quota.shadow) == (["shadow"], 100, 20, True)
    edits.set_tier_quota(template="", **change)
    quota.refresh_from_db()
    assert (quota.template, quota.own, quota.limit, quota.shadow) == ("", [], 100, True)


def test_an_edit_that_makes_a_follower_invalid_is_refused_completely(standard: dict[str, Any]) -> None:
    change = {"tier": "pro", "quota": "requests", "expected_version": None, **standard}
    edits.set_tier_quota(burst=5, **change)
    before = head()
    with pytest.raises(InvalidEdit) as refused:
        edits.set_template(
            template="standard", algorithm="sliding_window", burst=1, expected_version=None, **standard
        )
    assert refused.value.errors["burst"][0].startswith(
        "requests of tier pro would become invalid: Only a token"
    )
    assert head() == before
    with pytest.raises(InvalidEdit, match="A new limit needs this"):
        edits.set_template(template="new", limit=1, expected_version=0, **standard)
    with pytest.raises(InvalidEdit, match="no template 'other'"):
        edits.set_tier_quota(template="other", **change)

    # Two people who edit the same template get a conflict.
    seen = version()
    edits.set_template(template="standard", limit=101, expected_version=seen, **standard)
    with pytest.raises(EditConflict) as conflict:
        edits.set_template(template="standard", limit=102, expected_version=seen, **standard)
    assert conflict.value.changed == {"limit": 101}
    with pytest.raises(EditConflict):
        edits.set_template(template="standard", limit=102, window_s=1, expected_version=0, **standard)
    with pytest.raises(NotFound):
        edits.remove_template(template="none", expected_version=None, **standard)


def test_removing_a_template_needs_a_choice_for_its_followers_and_a_rollback_restores_it(
    standard: dict[str, Any], text_limits: Any
) -> None:
    remove = {"template": "standard", "expected_version": None, **standard}
    then, revision = read_state("production"), head()
    with pytest.raises(InvalidEdit, match="followed by 3 limits of 1 tier, 1 tenant and 1 dependency"):
        edits.remove_template(**remove)
    edits.set_template(template="wide", limit=900, window_s=60, expected_version=0, **standard)
    edits.remove_template(instead="wide", **remove)
    [own] = record(text_limits, "acme").quotas
    assert (own.limit, own.burst) == (7, 1)
    assert set(TierQuota.objects.exclude(template="").values_list("template", "limit")) == {("wide", 900)}
    edits.remove_template(keep_values=True, **remove | {"template": "wide"})
    assert not Template.objects.exists()
    assert TierQuota.objects.get(tier__name="pro", name="requests").limit == 900
    assert not TierQuota.objects.exclude(template="").exists()
    edits.rollback(to_revision=revision, expected_revision=None, **standard)
    assert read_state("production") == then


def test_a_template_that_contradicts_the_own_values_of_a_follower_is_not_followed_instead(
    standard: dict[str, Any],
) -> None:
    """Each was an error of the database, or a limit that pods cannot read."""
    change: dict[str, Any] = {"tier": "pro", "quota": "requests", "expected_version": None, **standard}
    edits.set_tier_quota(**change, burst=20)
    remove = {"template": "standard", "expected_version": None, **standard}
    others = {
        "slide": {"limit": 900, "window_s": 60, "burst": 1, "algorithm": "sliding_window"},
        "month": {"limit": 900, "window_s": 60, "burst": 1, "algorithm": "fixed_window", "period": "month"},
        "large": {"limit": 100_000_000, "window_s": 60, "burst": 1},
    }
    wrong = {"slide": "burst", "month": "burst", "large": "window_s"}
    for name, values in others.items():
        edits.set_template(template=name, expected_version=0, **standard, **values)
    edits.set_tier_quota(**change, window_s=30_000)
    before = read_state("production", tenants=None)
    for name, column in wrong.items():
        with pytest.raises(InvalidEdit) as refused:
            edits.remove_template(instead=name, **remove)
        assert (
            f"tiers.pro.quotas.requests.{column} would become invalid" in refused.value.errors["instead"][0]
        )
    assert read_state("production", tenants=None) == before
    edits.set_tier_quota(**change, template="standard", shadow=True)
    edits.remove_template(instead="slide", **remove)
    row = TierQuota.objects.get(tier__name="pro", name="requests")
    assert (row.template, row.algorithm, row.own, row.shadow) == ("slide", "sliding_window", ["shadow"], True)


def test_effective_values_name_their_template(standard: dict[str, Any]) -> None:
    revision = edits.set_template(template="standard", burst=30, expected_version=None, **standard)
    found = {value.name: value for value in effective("production", "acme")}
    burst = found["quotas.exports.burst"]
    assert (burst.source, burst.at, burst.followed_by) == ("template", "standard", "acme")
    assert (burst.value, burst.revision, burst.by) == (30, revision, "ada")
    own = found["quotas.exports.limit"]
    assert (own.source, own.at, own.value) == ("tenant override", "acme", 7)
    of_tier = found["quotas.requests.limit"]
    assert (of_tier.source, of_tier.at, of_tier.followed_by) == ("template", "standard", "pro")
    assert "quotas.exports.own" not in found


def test_an_export_has_templates_and_only_overridden_values(standard: dict[str, Any], ada: Any) -> None:
    text = "".join(export_plan("production"))
    assert 'standard:\n    title: "As most have it"\n    algorithm: token_bucket\n    limit: 100\n' in text
    assert "exports: {template: standard, limit: 7}" in text
    assert not difference("production", read_plan(text), prune=True)
    assert ",exports,7,,," in "".join(export_csv("production"))
    assert not difference("production", read_plan("".join(export_csv("production"))))

    edits.create_environment(environment="staging", reason="For a test", actor=ada)
    copy_configuration(
        source="production", environment="staging", reason="For a test", actor=ada, with_tenants=True
    )
    kept = {thing: fields for thing, fields in read_state("staging").items() if thing[0] != "environment"}
    assert kept.items() <= read_state("production").items()


def test_a_plan_that_changes_a_template_changes_its_followers(standard: dict[str, Any], ada: Any) -> None:
    text = (
        "templates:\n  standard: {limit: 500}\n  wide: {limit: 9, window_s: 1}\n"
        "tenants:\n  acme:\n    quotas:\n      exports: {template: wide}\n"
    )
    apply_plan(
        environment="production",
        plan=read_plan(text),
        expected_revision=None,
        reason="For a test",
        actor=ada,
    )
    assert TierQuota.objects.get(tier__name="pro", name="requests").limit == 500
    quota = TenantQuota.objects.get(name="exports")
    assert (quota.template, quota.own, quota.limit, quota.window_s) == ("wide", [], 9, 1)
    assert not difference("production", read_plan(text))
    with pytest.raises(PlanErrors) as refused:
        difference("production", read_plan("templates:\n  wide: {limit: 9}\n"), prune=True)
    assert {error.where for error in refused.value.found} == {"templates.standard"}
    with pytest.raises(PlanErrors) as refused:
        difference(
            "production", read_plan("templates:\n  bad: {limit: x, dependency: openai, template: a}\n")
        )
    assert {error.where for error in refused.value.found} == {
        "templates.bad.limit",
        "templates.bad.dependency",
        "templates.bad.template",
    }


def test_after_a_temporary_quota_the_template_applies_with_its_present_values(
    standard: dict[str, Any],
) -> None:
    edits.set_tenant_quota(
        tenant="acme",
        quota="exports",
        limit=70,
        expires_at=timezone.now() + timedelta(hours=1),
        expected_version=None,
        **standard,
    )
    edits.set_template(template="standard", burst=33, expected_version=None, **standard)
    TenantQuota.objects.filter(name="exports").update(expires_at=timezone.now())
    expire_quotas()
    quota = TenantQuota.objects.get(name="exports")
    assert (quota.template, quota.own, quota.limit, quota.burst) == ("standard", ["limit"], 7, 33)


def test_a_program_creates_previews_and_removes_a_template(call: Any) -> None:
    def admin(method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = call("admin", method, f"{API}/{path}", body, **headers)
        assert answer.status_code == 200, answer.content
        return answer

    why = {"reason": "For a test of templates"}
    problem(call("admin", "PUT", f"{API}/templates/standard", {"limit": 9, "window_s": 60, **why}), 428)
    new = {"limit": 9, "window_s": 60, "title": "Usual", "expected_version": 0, **why}
    admin("PUT", "templates/standard", new)
    body = {"template": "standard", "burst": 3, "expected_version": 1, **why}
    admin("PUT", "tenants/acme/quotas/requests", body)
    [quota] = admin("GET", "tenants/acme").json()["quotas"]
    assert (quota["template"], quota["own"], quota["limit"], quota["burst"]) == ("standard", ["burst"], 9, 3)
    read = admin("GET", "templates/standard")
    assert read.json()["followers"] == admin("GET", "templates").json()[0]["followers"]
    planned = admin("POST", "templates/standard/preview", {"limit": 11, **why}).json()
    assert (planned["changes"], planned["followers"]["tenants"]) == (2, 1)
    assert "quotas.requests.limit: 9 -> 11" in planned["text"]
    admin("PUT", "templates/standard", {"limit": 11, **why}, **{"If-Match": read["ETag"]})
    [follower] = admin("GET", "templates/standard/followers").json()
    assert follower == {"kind": "tenant", "name": "acme", "limit": "requests", "own": {"burst": 3}}
    values = {value["name"]: value for value in admin("GET", "tenants/acme/effective").json()}
    assert values["quotas.requests.limit"]["source"] == "template"
    gone = "templates/standard?reason=for+a+test"
    said = problem(call("admin", "DELETE", f"{API}/{gone}&expected_version=1"), 409)
    assert said["changed"] == {"limit": 11, "title": "Usual"} | said["changed"]
    version = admin("GET", "templates/standard").json()["version"]
    said = problem(call("admin", "DELETE", f"{API}/{gone}&expected_version={version}"), 422)
    assert "followed by 1 limit of 1 tenant" in said["detail"]
    admin("DELETE", f"{gone}&expected_version={version}&keep_values=true")
    assert admin("GET", "tenants/acme").json()["quotas"][0]["template"] == ""
