"""Parents of tenants (organisation, team, user), from the edit to the decision."""

import asyncio
import io

import pytest

from controlplane.editing import edits
from controlplane.editing.edits import TenantChange, TenantFilter
from controlplane.editing.plans import PlanErrors, apply_plan, difference, export_csv, export_plan, read_plan
from controlplane.errors import InvalidEdit
from controlplane.policies.effective import effective
from controlplane.policies.models import Tenant
from controlplane.publishing.publish import publish_head
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_tenant
from tests.agents.servers import running
from tests.agents.test_configuration_watch import watched
from tests.waiting import eventually

REASON = "a test of parents"

QUOTAS = """
tuning: {store_deadline_us: 50000, store_timeouts: 10000}
tiers:
  business: {quotas: {requests: {limit: 6, <<}}}
  seat: {}
tenants:
  ann: {tier: seat, parent: acme-web, quotas: {requests: {limit: 3, <<}}}
  acme: {tier: business}
  acme-web: {tier: seat, parent: acme}
  acme-ads: {tier: seat, parent: acme}
""".replace("<<", "window_s: 600, algorithm: sliding_window")


@pytest.fixture
def common(environment, ada):
    return {"environment": environment, "reason": REASON, "actor": ada}


@pytest.fixture
def environment(transactional_db, limits, ada):
    edits.create_environment(environment="production", reason=REASON, actor=ada)
    return "production"


@pytest.fixture
def organisation(common):
    apply(common, QUOTAS)


def apply(common, text, **more):
    plan = read_plan(io.BytesIO(text.encode()))
    return apply_plan(plan=plan, expected_revision=None, **common, **more)


def record(limits, tenant):
    publish_head("production")
    text = limits.hget(keys.own_bucket("production", keys.tenant_bucket_number(tenant)), tenant)
    return decode_tenant(text)


def test_a_record_names_its_parents_the_topmost_first(organisation, limits):
    assert record(limits, "ann").parents == ("acme", "acme-web")
    assert record(limits, "acme-ads").parents == ("acme",)


def test_a_pod_charges_a_user_its_team_and_its_organisation(organisation, redis_url):
    publish_head("production")

    async def ask():
        async with (
            watched(redis_url) as (configuration, _),
            running(redis_url, configuration=configuration) as pod,
        ):
            for tenant in ("ann", "acme-ads"):
                await configuration.load_record(tenant)
                await eventually(lambda tenant=tenant: configuration.snapshot.quotas_of(tenant).loaded)
            answers = [await pod.admission.admit_request("ann") for _ in range(5)]
            answers += [await pod.admission.admit_request("acme-ads") for _ in range(5)]
            return [(answer.allowed, answer.rule) for answer in answers]

    mine, spent = (False, "requests"), (False, "acme/requests")
    assert asyncio.run(ask()) == [(True, "")] * 3 + [mine] * 2 + [(True, "")] * 3 + [spent] * 2


def test_the_tenants_below_a_moved_team_move_with_it(organisation, common, limits):
    edits.create_tenant(tenant="globex", tier="business", **common)
    version = Tenant.objects.get(key="ann").version
    edits.move_tenant(tenant="acme-web", parent="globex", expected_version=None, **common)
    assert record(limits, "ann").parents == ("globex", "acme-web")
    assert Tenant.objects.get(key="ann").version == version
    edits.move_tenant(tenant="acme-web", parent="", expected_version=None, **common)
    assert record(limits, "ann").parents == ("acme-web",)


@pytest.mark.parametrize(
    ("tenant", "parent", "says"),
    [
        ("acme", "ann", "at most 2 levels"),
        ("acme", "acme", "at most 2 levels"),
        ("acme-ads", "ann", "at most 2 levels"),
        ("acme-ads", "nobody", "belongs to nobody, which is not registered"),
    ],
)
def test_invalid_parents_are_refused_and_change_nothing(organisation, common, tenant, parent, says):
    before = "".join(export_plan("production"))
    with pytest.raises(InvalidEdit, match=says):
        edits.move_tenant(tenant=tenant, parent=parent, expected_version=None, **common)
    assert "".join(export_plan("production")) == before


def test_a_tenant_with_tenants_below_cannot_be_removed(organisation, common):
    with pytest.raises(InvalidEdit, match="ann belongs to acme-web, which is not registered"):
        edits.remove_tenant(tenant="acme-web", **common)
    edits.remove_tenant(tenant="ann", **common)
    edits.remove_tenant(tenant="acme-web", **common)


def test_a_plan_with_invalid_parents_is_refused_before_it_is_applied(organisation, common):
    wrong = "tenants:\n  acme: {parent: ann}\n  acme-ads: {parent: nobody}\n  acme-web: {parent: ''}\n"
    with pytest.raises(PlanErrors) as refused:
        difference("production", read_plan(io.BytesIO(wrong.encode())))
    assert [(error.line, error.where) for error in refused.value.found] == [(3, "tenants.acme-ads.parent")]
    deep = "tenants:\n  bob: {tier: seat, parent: ann}\n"
    with pytest.raises(PlanErrors, match="at most 2 levels"):
        difference("production", read_plan(io.BytesIO(deep.encode())))


@pytest.mark.parametrize("written", [export_plan, export_csv])
def test_what_was_exported_changes_nothing(organisation, common, written):
    text = "".join(written("production"))
    assert "acme-web" in text
    before = Tenant.objects.get(key="ann").changed_revision
    apply(common, text)
    assert Tenant.objects.get(key="ann").changed_revision == before
    apply(common, "tenants:\n  ann: {parent: ''}\n")
    assert Tenant.objects.get(key="ann").parent == ""
    apply(common, text)
    assert Tenant.objects.get(key="ann").parent == "acme-web"


def test_a_rollback_restores_parents(organisation, common):
    revision = Tenant.objects.get(key="ann").changed_revision
    edits.move_tenant(tenant="ann", parent="acme-ads", expected_version=None, **common)
    edits.rollback(to_revision=revision, expected_revision=None, **common)
    assert Tenant.objects.get(key="ann").parent == "acme-web"


def test_a_bulk_edit_moves_tenants(organisation, common):
    edits.create_tenant(tenant="globex", tier="business", **common)
    edits.bulk_edit(
        filter=TenantFilter(parent="acme"),
        change=TenantChange(parent="globex"),
        expected_revision=None,
        **common,
    )
    moved = Tenant.objects.filter(parent="globex").values_list("key", flat=True)
    assert sorted(moved) == ["acme-ads", "acme-web"]


def test_effective_values_name_the_parent_they_come_from(organisation):
    values = {value.name: value for value in effective("production", "ann")}
    assert values["parent"].value == "acme-web"
    assert values["quotas.requests.limit"].value == 3
    above = values["quotas.acme/requests.limit"]
    assert (above.value, above.at, above.inherited_from) == (6, "business", "acme")


CHANGE = {"reason": REASON, "expected_version": 1}
PATH = "/api/v1/production/tenants"


def test_the_api_shows_and_moves_them(call, production):
    call("admin", "POST", PATH, {"key": "ann", "tier": "free", "parent": "acme", "reason": REASON})
    assert call("viewer", "GET", f"{PATH}/ann").json()["parent"] == "acme"
    below = call("viewer", "GET", f"{PATH}?parent=acme").json()["items"]
    assert [tenant["key"] for tenant in below] == ["ann"]
    moved = call("admin", "PATCH", f"{PATH}/ann", {"parent": "", **CHANGE})
    assert moved.status_code == 200
    assert call("viewer", "GET", f"{PATH}/ann").json()["parent"] == ""
    wrong = call("admin", "PATCH", f"{PATH}/acme", {"parent": "acme", **CHANGE})
    assert wrong.status_code == 422
    assert "levels" in wrong.text
