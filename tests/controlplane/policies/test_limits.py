"""Limits of every kind: stored, refused by field, and in the document that pods decide by."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from controlplane.audit.models import Entry
from controlplane.editing import edits
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.document import environment_of, tenant_records
from controlplane.policies.models import Dependency, Environment, SubjectLimit, TierQuota, VendorLimit
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Dimension, Period
from tests.controlplane.published import published_policy

DAILY: dict[str, Any] = {
    "limit": 2_000_000,
    "window_s": 86_400,
    "burst": 1,
    "algorithm": Algorithm.FIXED_WINDOW,
    "period": Period.DAY,
    "time_zone": "Europe/Berlin",
    "measure": "tokens",
    "per": [Dimension.API_KEY, Dimension.USER],
    "endpoints": ["POST /v1/*"],
    "dependency": "openai",
    "warn_percent": 80,
    "reserved_percent": 25,
}


@pytest.fixture
def common(production: str, ada: Any) -> dict[str, Any]:
    return {"environment": production, "reason": "for a test", "actor": ada}


def quota(policy: Any, tier: str, name: str) -> Limit:
    [found] = [row for one in policy.tiers if one.name == tier for row in one.quotas if row.name == name]
    return found


def test_a_budget_of_tokens_reaches_the_pods_with_every_field(common: Any) -> None:
    edits.set_tier_quota(**common, tier="pro", quota="daily-tokens", expected_version=None, **DAILY)
    found = quota(published_policy(), "pro", "daily-tokens")
    assert (found.algorithm, found.period, found.time_zone) == ("fixed_window", "day", "Europe/Berlin")
    assert (found.measure, found.per, found.endpoints) == ("tokens", ("user", "api_key"), ("POST /v1/*",))
    assert (found.dependency, found.warn_percent, found.limit) == ("openai", 80, 2_000_000)
    assert found.reserved_percent == 25


def test_a_tenants_new_quota_takes_missing_values_from_its_tiers(common: Any) -> None:
    edits.set_tier_quota(**common, tier="pro", quota="daily-tokens", expected_version=None, **DAILY)
    edits.set_tenant_quota(
        **common,
        tenant="acme",
        quota="daily-tokens",
        limit=9,
        window_s=86_400,
        burst=1,
        expected_version=None,
    )
    record = tenant_records("production")["acme"]
    assert record is not None
    [own] = record.quotas
    assert (own.limit, own.period, own.measure, own.dependency) == (9, "day", "tokens", "openai")


def test_a_vendor_limit_can_have_slots_and_leases(common: Any) -> None:
    edits.set_vendor_limit(
        **common,
        dependency="openai",
        name="at-once",
        limit=20,
        window_s=60,
        algorithm=Algorithm.CONCURRENCY,
        lease_above=500,
        expected_version=None,
    )
    [dependency] = published_policy().dependencies
    [limit] = dependency.vendor_limits
    assert (limit.algorithm, limit.limit, limit.lease_above) == ("concurrency", 20, 500)
    # A vendor limit belongs to its dependency. The column of quotas does not move it to another one.
    assert VendorLimit.objects.get().dependency == Dependency.objects.get()


def test_a_limit_of_callers_without_a_tenant_is_set_and_removed(common: Any) -> None:
    numbers = {"limit": 10, "window_s": 1, "burst": 10}
    edits.set_subject_limit(**common, name="addresses", per=[Dimension.IP], **numbers)
    [limit] = published_policy().subject_limits
    assert (limit.name, limit.per) == ("addresses", ("ip",))
    entry = Entry.objects.get(action="subject_limit.set")
    assert entry.after["subject_limits.addresses.per"] == ["ip"]
    edits.remove_subject_limit(**common, name="addresses")
    assert published_policy().subject_limits == ()
    with pytest.raises(NotFound):
        edits.remove_subject_limit(**common, name="addresses")


def test_a_limit_leaves_the_stored_protection_of_pods_and_dependencies_alone(common: Any) -> None:
    pods, calls = {"shedding": {}, "retries_per_s": 10}, {"sla_ms": 2_000, "retry": {}}
    Environment.objects.filter(pk=common["environment"]).update(protection=pods)
    Dependency.objects.filter(environment=common["environment"]).update(protection=calls)
    edits.set_subject_limit(name="by-ip", per=["ip"], limit=5, window_s=1, **common)
    row = Dependency.objects.filter(environment=common["environment"]).first()
    assert row is not None
    edits.set_vendor_limit(
        dependency=row.name, name="new-rate", limit=500, window_s=60, expected_version=None, **common
    )
    row.refresh_from_db()
    assert (environment_of(common["environment"]).protection, row.protection) == (pods, calls)


def test_a_slow_start_is_published(common: Any) -> None:
    edits.set_breaker_policy(
        **common, dependency="openai", breaker={"slow_start_ms": 30_000}, expected_version=None
    )
    assert published_policy().dependencies[0].breaker.slow_start_ms == 30_000


def test_another_algorithm_clears_the_period(common: Any) -> None:
    edits.set_tier_quota(**common, tier="pro", quota="calls", expected_version=None, **DAILY)
    numbers = {"limit": 10, "window_s": 1, "burst": 1}
    edits.set_tier_quota(
        **common,
        tier="pro",
        quota="calls",
        expected_version=None,
        algorithm=Algorithm.SLIDING_WINDOW,
        **numbers,
    )
    assert quota(published_policy(), "pro", "calls").period is None


BAD = [
    ({"period": ""}, "period"),
    ({"period": "fortnight"}, "period"),
    ({"algorithm": "token_bucket", "period": "day", "limit": 5}, "period"),
    ({"algorithm": "concurrency", "period": "", "burst": 2}, "burst"),
    ({"algorithm": "token_bucket", "period": "", "limit": 1_000_000}, "window_s"),
    ({"algorithm": "leaky_bucket"}, "algorithm"),
    ({"time_zone": "Europe/Atlantis"}, "time_zone"),
    ({"time_zone": "../etc"}, "time_zone"),
    ({"time_zone": ""}, "time_zone"),
    ({"measure": "two words"}, "measure"),
    ({"per": ["tenant"]}, "per"),
    ({"endpoints": [""]}, "endpoints"),
    ({"endpoints": ["GET /"] * 21}, "endpoints"),
    ({"endpoints": ["x" * 201]}, "endpoints"),
    ({"dependency": "nobody"}, "dependency"),
    ({"warn_percent": 101}, "warn_percent"),
    ({"warn_percent": True}, "warn_percent"),
    ({"lease_above": -1}, "lease_above"),
    ({"reserved_percent": 101}, "reserved_percent"),
    ({"reserved_percent": -2}, "reserved_percent"),
    ({"reserved_percent": True}, "reserved_percent"),
]


@pytest.mark.parametrize(("changes", "field"), BAD, ids=lambda cell: str(cell)[:50])
def test_an_invalid_value_is_refused_by_field_and_changes_nothing(
    common: Any, changes: Any, field: str
) -> None:
    revision = environment_of("production").revision
    with pytest.raises(InvalidEdit) as refused:
        edits.set_tier_quota(
            **common, tier="pro", quota="daily-tokens", expected_version=None, **DAILY | changes
        )
    assert list(refused.value.errors) == [field]
    assert environment_of("production").revision == revision


def test_a_limit_of_callers_without_a_tenant_needs_per(common: Any) -> None:
    with pytest.raises(InvalidEdit) as refused:
        edits.set_subject_limit(**common, name="all", limit=1, window_s=1, burst=1)
    assert list(refused.value.errors) == ["per"]


ROWS = [
    {"algorithm": "leaky_bucket"},
    {"algorithm": "fixed_window"},
    {"period": "day"},
    {"algorithm": "concurrency", "burst": 2},
    {"limit": 1_000_000_000, "window_s": 86_400},
    {"per": ["tenant"]},
    {"per": []},
    {"endpoints": ["GET /"] * 21},
    {"measure": ""},
    {"time_zone": ""},
    {"warn_percent": 101},
    {"lease_above": -1},
    {"reserved_percent": -2},
    {"reserved_percent": 101},
]


@pytest.mark.parametrize("columns", ROWS, ids=lambda columns: str(columns)[:50])
def test_postgres_refuses_what_pods_would_refuse(production: str, columns: dict[str, Any]) -> None:
    good: dict[str, Any] = {"limit": 10, "window_s": 1, "per": ["ip"]}
    with pytest.raises(IntegrityError), transaction.atomic():
        SubjectLimit.objects.create(environment_id=production, name="addresses", **good | columns)
    SubjectLimit.objects.create(environment_id=production, name="addresses", **good)
    assert TierQuota.objects.filter(per=[]).exists()
