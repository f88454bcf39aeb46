"""Deletes what is stored about a tenant: its figures and its name."""

from django.db import connection, transaction

from controlplane.series.kinds import RULE, TENANT
from controlplane.series.models import Entity
from controlplane.series.partitions import TABLES
from controlplane.series.tenant_hours import erase_hours


def erase_tenant(environment: str, tenant: str) -> int:
    """Delete the series of a tenant and of its quotas; returns their number.

    Frames keep numbers to which no name belongs any more. Sealing leaves these out, and deletes the frames
    within hours. Raises ``ValueError`` without a name, which stands for all tenants together.
    """
    if not tenant:
        raise ValueError("Name the tenant to erase.")
    things = Entity.objects.filter(
        environment=environment, kind__in=(TENANT.number, RULE.number), name=tenant
    )
    with transaction.atomic(), connection.cursor() as cursor:
        numbers = list(things.values_list("id", flat=True))
        for table in TABLES:
            cursor.execute(f"DELETE FROM {table.name} WHERE entity = ANY(%s)", [numbers])  # noqa: S608
        Entity.objects.filter(id__in=numbers).delete()
        hours = erase_hours(environment, tenant)
    return len(numbers) + (hours > 0)
