"""Reading tenants takes no longer when Postgres still expects few of them."""

import pytest
from django.db import connection, transaction

from controlplane.policies.document import tenant_records
from controlplane.policies.models import Tenant, TenantQuota, Tier

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 2000


@pytest.fixture
def imported(production: str) -> str:
    """Thousands of tenants, after statistics of one. Half have quotas, and nearly all have two parents."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE policies_tenant, policies_tenantquota")
    tier = Tier.objects.get(name="pro")
    parents = ["", *["t-0"] * 40, *(f"t-{1 + number % 40}" for number in range(41, MANY))]
    tenants = Tenant.objects.bulk_create(
        Tenant(environment_id=production, key=f"t-{number}", tier=tier, parent=parent, changed_revision=1000)
        for number, parent in enumerate(parents)
    )
    TenantQuota.objects.bulk_create(
        TenantQuota(tenant=tenant, name="requests", limit=5, window_s=60) for tenant in tenants[::2]
    )
    return production


@pytest.mark.parametrize("since", [-1, 999])
def test_few_rows_are_read_for_each_tenant(imported: str, since: int) -> None:
    with transaction.atomic():
        before = _rows_read()
        records = tenant_records(imported, since=since)
        read = _rows_read() - before
    found = records["t-1999"]
    assert found is not None
    assert (found.parents, found.quotas) == (("t-0", "t-40"), ())
    assert len(records) >= MANY
    assert read < 20 * MANY


def _rows_read() -> int:
    """Rows of tables and entries of indexes that this transaction has read."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables")
        [(read,)] = cursor.fetchall()
    return int(read)
