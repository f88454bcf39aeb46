"""Repairs a copy in Redis whose head is the newest, but whose tenants differ."""

from typing import Any

import pytest

from controlplane.editing import edits
from controlplane.policies.models import Environment, Tenant
from controlplane.repair.tasks import reconcile_all_tenants
from controlplane.repair.tenant_digests import reconcile_tenants
from fuseboard.contract import keys
from fuseboard.contract.policy import decode_tenant
from tests.tenants import create_tenants


def bucket(tenant: str, *, own: bool = False) -> str:
    key = keys.own_bucket if own else keys.tenant_bucket
    return key("production", keys.tenant_bucket_number(tenant))


@pytest.fixture
def tenants(production: str, ada: Any) -> list[str]:
    """Two hundred tenants, one with an own quota."""
    names = [f"tenant-{number}" for number in range(200)]
    create_tenants(
        tenants=[(name, "free", "") for name in names],
        actor=ada,
    )
    edits.set_tenant_quota(
        environment="production",
        tenant="tenant-7",
        quota="requests",
        limit=9,
        window_s=60,
        burst=3,
        expected_version=None,
        reason="for a test",
        actor=ada,
    )
    return names


def test_an_intact_copy_is_not_repaired(tenants: list[str], text_limits: Any) -> None:
    before = Environment.objects.get().revision
    assert reconcile_tenants("production") == []
    assert Environment.objects.get().revision == before


def test_a_tenant_with_own_quotas_is_stored_separately_until_it_has_none(
    tenants: list[str], text_limits: Any, ada: Any
) -> None:
    assert decode_tenant(text_limits.hget(bucket("tenant-7", own=True), "tenant-7").encode()).quotas
    assert text_limits.hget(bucket("tenant-7"), "tenant-7") is None
    edits.remove_tenant_quota(
        environment="production",
        tenant="tenant-7",
        quota="requests",
        expected_version=None,
        reason="for a test",
        actor=ada,
    )
    assert text_limits.hget(bucket("tenant-7", own=True), "tenant-7") is None
    assert text_limits.hget(bucket("tenant-7"), "tenant-7") == '{"tier":"free"}'
    assert reconcile_tenants("production") == []


def test_a_tenant_with_a_parent_and_no_own_quota_needs_no_repair(
    tenants: list[str], text_limits: Any, ada: Any
) -> None:
    edits.move_tenant(
        environment="production",
        tenant="tenant-7",
        parent="tenant-8",
        expected_version=None,
        reason="for a test",
        actor=ada,
    )
    edits.move_tenant(
        environment="production",
        tenant="tenant-42",
        parent="tenant-8",
        expected_version=None,
        reason="for a test",
        actor=ada,
    )
    before = Environment.objects.get().revision
    assert reconcile_tenants("production") == []
    assert Environment.objects.get().revision == before


@pytest.mark.parametrize("damage", ["lost", "lost own", "foreign", "changed", "wrong type", "a whole bucket"])
def test_a_damaged_bucket_is_rewritten_and_pods_read_it_again(
    tenants: list[str], text_limits: Any, damage: str
) -> None:
    before = Environment.objects.get().revision
    name = "tenant-7" if damage == "lost own" else "tenant-42"
    if damage == "lost":
        text_limits.hdel(bucket(name), name)
    elif damage == "lost own":
        text_limits.delete(bucket(name, own=True))
    elif damage == "foreign":
        text_limits.hset(bucket(name), "stranger", '{"tier":"enterprise"}')
    elif damage == "changed":
        text_limits.hset(bucket(name), name, '{"tier":"enterprise"}')
    elif damage == "wrong type":
        text_limits.set(bucket(name, own=True), "rubbish")
    else:
        text_limits.delete(bucket(name))

    reconcile_all_tenants()

    assert text_limits.hget(bucket("tenant-42"), "tenant-42") == '{"tier":"free"}'
    assert decode_tenant(text_limits.hget(bucket("tenant-7", own=True), "tenant-7").encode()).quotas
    assert text_limits.hget(bucket(name), "stranger") is None
    # With a separate revision, so that a pod that has read the wrong record reads it again.
    assert Environment.objects.get().revision == before + 1
    assert Tenant.objects.get(key=name).changed_revision == before + 1
    assert reconcile_tenants("production") == []
