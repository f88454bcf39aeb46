"""Bulk edits of tenants, and the effective settings of one with their sources."""

from datetime import datetime
from typing import Any

import pytest

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.editing.edits import TenantChange, TenantFilter
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.effective import effective
from controlplane.policies.models import Environment, Tenant, TenantQuota, TierQuota

REASON = "For a test of many"


@pytest.fixture
def many(production: str, ada: Any) -> str:
    """Five tenants: two of the pro tier, two with an own quota, one suspended."""
    own = {"requests": {"limit": 40, "window_s": 60, "burst": 4}}
    apply_plan(
        environment="production",
        plan=plan_from_document(
            {
                "tenants": {
                    "eu-1": {"tier": "free", "quotas": own},
                    "eu-2": {"tier": "free"},
                    "us-1": {"tier": "free", "suspended": True},
                    "us-2": {"tier": "pro", "quotas": {"uploads": {"limit": 3, "window_s": 60}}},
                }
            }
        ),
        expected_revision=None,
        reason=REASON,
        actor=ada,
    )
    return production


def head() -> int:
    return Environment.objects.get(pk="production").revision


def bulk(ada: Any, who: TenantFilter, what: TenantChange, expected: int | None = None) -> int:
    return edits.bulk_edit(
        environment="production",
        filter=who,
        change=what,
        reason=REASON,
        actor=ada,
        expected_revision=expected,
    )


@pytest.mark.parametrize(
    ("who", "found"),
    [
        (TenantFilter(tier="free"), ["eu-1", "eu-2", "us-1"]),
        (TenantFilter(prefix="eu-"), ["eu-1", "eu-2"]),
        (TenantFilter(prefix="%"), []),
        (TenantFilter(has_quota=True), ["eu-1", "us-2"]),
        (TenantFilter(has_quota=False), ["acme", "eu-2", "us-1"]),
        (TenantFilter(quota="uploads"), ["us-2"]),
        (TenantFilter(quota="uploads", has_quota=False), ["acme", "eu-1", "eu-2", "us-1"]),
        (TenantFilter(suspended=True), ["us-1"]),
        (TenantFilter(tier="free", suspended=False, prefix="eu"), ["eu-1", "eu-2"]),
        (TenantFilter(keys=("us-2", "acme", "no-such-tenant")), ["acme", "us-2"]),
        (TenantFilter(keys=("us-2", "acme"), suspended=True), []),
        (TenantFilter(everybody=True), ["acme", "eu-1", "eu-2", "us-1", "us-2"]),
    ],
)
def test_a_filter_matches_tenants_that_meet_all_conditions(
    many: str, who: TenantFilter, found: list[str]
) -> None:
    assert list(who.rows("production").values_list("key", flat=True)) == found


def test_a_bulk_edit_is_previewed_and_is_one_revision(many: str, ada: Any) -> None:
    who = TenantFilter(tier="free")
    what = TenantChange(quotas={"requests": {"limit": 500, "window_s": 60, "burst": 50}}, suspended=False)
    before = head()
    shown = edits.preview_bulk_edit(environment="production", filter=who, change=what)
    assert [change.name for change in shown.changes] == ["eu-1", "eu-2", "us-1"]
    assert head() == before
    assert bulk(ada, who, what, expected=shown.revision) == before + 1
    for tenant in Tenant.objects.filter(tier__name="free"):
        [quota] = tenant.quotas.all()
        assert (quota.limit, quota.burst, quota.failure_policy) == (500, 50, "fail_open")
        assert (tenant.suspended, tenant.changed_revision) == (False, before + 1)
    [entry] = Entry.objects.filter(revision=before + 1)
    assert (entry.action, entry.after["tenants"], entry.after["filter.tier"]) == (
        "tenants.changed",
        3,
        "free",
    )
    # A repetition changes nothing and returns the same revision.
    assert bulk(ada, who, what) == before + 1
    edits.rollback(
        environment="production", to_revision=before, expected_revision=None, reason=REASON, actor=ada
    )
    assert [quota.limit for quota in Tenant.objects.get(key="eu-1").quotas.all()] == [40]


def test_scaling_starts_from_the_own_or_the_tiers_values(many: str, ada: Any) -> None:
    bulk(ada, TenantFilter(prefix="eu-"), TenantChange(scale_percent={"requests": 150}))
    limits = {
        row.key: [(q.limit, q.burst) for q in row.quotas.all()]
        for row in Tenant.objects.filter(key__startswith="eu")
    }
    assert limits == {"eu-1": [(60, 6)], "eu-2": [(150, 30)]}


@pytest.mark.parametrize(
    ("columns", "own", "inherited"),
    [
        # Limit, window and burst of a tenant with its own quota, and of one that followed its tier.
        ({"limit": 200}, (200, 60, 4), (200, 60, 20)),
        ({"window_s": 1}, (40, 1, 4), (100, 1, 20)),
        ({"burst": 7}, (40, 60, 7), (100, 60, 7)),
        ({"limit": 200, "window_s": 1}, (200, 1, 4), (200, 1, 20)),
        ({"failure_policy": "fail_closed"}, (40, 60, 4), (100, 60, 20)),
    ],
)
def test_what_a_bulk_edit_does_not_give_stays_also_where_the_tier_decides_it(
    many: str, ada: Any, columns: dict[str, Any], own: Any, inherited: Any
) -> None:
    """The burst of a token bucket became 1, and its customers were refused."""
    bulk(ada, TenantFilter(prefix="eu-"), TenantChange(quotas={"requests": columns}))
    rows = TenantQuota.objects.filter(tenant__key__startswith="eu-").order_by("tenant__key")
    assert [(row.limit, row.window_s, row.burst) for row in rows] == [own, inherited]


def test_a_bulk_edit_that_moves_tenants_keeps_what_the_new_tier_decides(many: str, ada: Any) -> None:
    pro = TierQuota.objects.get(tier__name="pro", name="requests")
    change = TenantChange(tier="pro", quotas={"requests": {"limit": 200}})
    bulk(ada, TenantFilter(keys=("eu-2",)), change)
    row = TenantQuota.objects.get(tenant__key="eu-2")
    assert (row.limit, row.window_s, row.burst) == (200, pro.window_s, pro.burst)
    assert row.burst > 1


def test_a_bulk_edit_to_an_algorithm_without_a_burst_has_none(many: str, ada: Any) -> None:
    change = TenantChange(quotas={"requests": {"algorithm": "sliding_window"}})
    bulk(ada, TenantFilter(keys=("eu-2",)), change)
    row = TenantQuota.objects.get(tenant__key="eu-2")
    assert (row.algorithm, row.limit, row.window_s, row.burst) == ("sliding_window", 100, 60, 1)


def test_a_scheduled_bulk_edit_keeps_the_burst_of_the_tier(many: str) -> None:
    planned = edits.scheduled_bulk_edit(
        environment="production",
        filter=TenantFilter(keys=("eu-2",)),
        change=TenantChange(quotas={"requests": {"limit": 200}}),
        expected_revision=None,
    )
    assert planned["tenants"]["eu-2"]["quotas"]["requests"]["burst"] == 20


def test_a_bulk_edit_removes_own_quotas(many: str, ada: Any) -> None:
    revision = bulk(ada, TenantFilter(has_quota=True), TenantChange(remove_quotas=("requests",)))
    assert not Tenant.objects.get(key="eu-1").quotas.exists()
    assert Tenant.objects.get(key="us-2").quotas.count() == 1
    assert list(Tenant.objects.filter(changed_revision=revision).values_list("key", flat=True)) == ["eu-1"]


@pytest.mark.parametrize(
    ("who", "what", "field"),
    [
        (TenantFilter(), TenantChange(suspended=True), "filter"),
        (TenantFilter(tier="free"), TenantChange(), "change"),
        (TenantFilter(tier="free"), TenantChange(tier="nowhere"), "change"),
        (TenantFilter(tier="free"), TenantChange(scale_percent={"requests": 0}), "scale_percent"),
        (TenantFilter(tier="free"), TenantChange(quotas={"requests": {"limit": True, "window_s": 1}}), ""),
        (TenantFilter(tier="free"), TenantChange(quotas={"new": {"limit": 1}}), "change"),
    ],
)
def test_an_invalid_bulk_edit_changes_no_tenant(
    many: str, ada: Any, who: TenantFilter, what: TenantChange, field: str
) -> None:
    before = head()
    with pytest.raises(InvalidEdit) as refused:
        bulk(ada, who, what)
    assert not field or field in refused.value.errors
    assert head() == before


def test_a_bulk_edit_of_an_older_revision_is_a_conflict(many: str, ada: Any) -> None:
    seen = head()
    edits.create_tenant(environment="production", tenant="eu-3", tier="free", reason=REASON, actor=ada)
    with pytest.raises(EditConflict):
        bulk(ada, TenantFilter(tier="free"), TenantChange(suspended=True), expected=seen)


def test_every_effective_value_has_its_source(many: str, ada: Any) -> None:
    found = {value.name: value for value in effective("production", "eu-1")}
    limit = found["quotas.requests.limit"]
    assert (limit.value, limit.source, limit.at, limit.instead_of) == (40, "tenant override", "eu-1", 100)
    assert (limit.by, limit.revision) == ("ada", head())
    assert (found["tier"].source, found["priority"].source) == ("tenant", "tier default")
    found = {value.name: value for value in effective("production", "us-2")}
    of_tier = found["quotas.requests.limit"]
    assert (of_tier.value, of_tier.source, of_tier.at) == (1_000, "tier default", "pro")
    assert (found["quotas.uploads.limit"].source, found["quotas.uploads.limit"].instead_of) == (
        "tenant override",
        None,
    )


def test_an_unregistered_tenant_gets_the_default_tier(many: str) -> None:
    found = {value.name: value for value in effective("production", "nobody-knows-me")}
    assert (found["tier"].value, found["tier"].source) == ("anonymous", "default tier")
    limit = found["quotas.requests.limit"]
    assert (limit.value, limit.source) == (10, "default tier")
    with pytest.raises(NotFound):
        effective("nowhere", "acme")


def test_scaled_numbers_that_no_limit_can_have_are_refused_in_the_preview(many: str, ada: Any) -> None:
    common: dict[str, Any] = {"environment": many, "reason": REASON, "actor": ada, "expected_version": None}
    edits.set_tenant_quota(tenant="eu-2", quota="uploads", limit=900_000_000, window_s=1, burst=1, **common)
    before = head()
    who, what = TenantFilter(prefix="eu-"), TenantChange(scale_percent={"uploads": 200})
    for attempt in (
        lambda: edits.preview_bulk_edit(environment=many, filter=who, change=what),
        lambda: bulk(ada, who, what),
    ):
        with pytest.raises(InvalidEdit) as refused:
            attempt()
        [said] = refused.value.errors["change"]
        assert said.startswith("tenants.eu-2.quotas.uploads.limit: Enter a whole number from 0 to")
    assert head() == before


def test_what_applies_after_a_temporary_quota_is_scaled_too(many: str, ada: Any, hour: datetime) -> None:
    common: dict[str, Any] = {"environment": many, "reason": REASON, "actor": ada, "expected_version": None}
    edits.set_template(template="usual", limit=100, window_s=60, burst=10, **common)
    edits.set_tenant_quota(tenant="eu-2", quota="requests", template="usual", **common)
    for tenant in ("eu-1", "eu-2"):
        edits.set_tenant_quota(tenant=tenant, quota="requests", limit=80, burst=8, expires_at=hour, **common)
    bulk(ada, TenantFilter(prefix="eu-"), TenantChange(scale_percent={"requests": 150}))
    rows = TenantQuota.objects.filter(name="requests").order_by("tenant__key")
    assert [(row.limit, row.burst, row.expires_at) for row in rows] == [(120, 12, hour)] * 2
    lasting = [row.returns_to or {} for row in rows]
    assert [(each["limit"], each["burst"]) for each in lasting] == [(60, 6), (150, 15)]
    assert lasting[1]["own"] == ["limit", "burst"]
    large = TenantChange(scale_percent={"requests": 10_000})
    TenantQuota.objects.filter(tenant__key="eu-1").update(returns_to={**lasting[0], "limit": 90_000_000})
    with pytest.raises(InvalidEdit, match=r"eu-1\.quotas\.requests\.limit"):
        edits.preview_bulk_edit(environment=many, filter=TenantFilter(prefix="eu-"), change=large)
