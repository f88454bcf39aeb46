"""Tenants found by what their ids and names contain, among 100,000."""

from django.db.models import QuerySet, Value
from django.db.models.functions import Concat, Lower, StrIndex

from controlplane.policies.models import Tenant


def search_tenants(rows: QuerySet[Tenant], query: str) -> QuerySet[Tenant]:
    """Whose id or name contains it. Read in the order of ids, so that the first page ends early."""
    # Made small and searched once, not twice: that, row by row, is what a search takes.
    text = Lower(Concat("key", Value("\n"), "title"))
    return rows.annotate(found_at=StrIndex(text, Value(query.lower()))).filter(found_at__gt=0)


def first_tenants(rows: QuerySet[Tenant], order: str, most: int) -> QuerySet[Tenant]:
    """The first of them, found in an index alone; only what is shown is read whole."""
    ids = list(rows.order_by(order).values_list("pk", flat=True)[:most])
    return Tenant.objects.filter(pk__in=ids).select_related("tier").order_by(order)
