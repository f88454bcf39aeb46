"""Forgets a tenant that is erased from Postgres: what is in memory would be written again."""

from controlplane.gateway.servers.series_spans import FleetSeries
from controlplane.gateway.servers.tenant_hours import TenantHours
from controlplane.series.kinds import RULE, TENANT, tenant_number


def erase_tenant(series: FleetSeries, hours: TenantHours, number: int, *, before: float) -> bool:
    """Forget what was counted of a tenant until ``before`` (wall time). Returns whether hours had it."""
    series.erased = True
    for span in series.spans.values():
        gone = [
            thing
            for thing in span.counted
            if thing[0] in (TENANT, RULE) and thing[1] and tenant_number(thing[1]) == number
        ]
        for thing in gone:
            del span.counted[thing]
            span.dirty = True
    return hours.erase(number, before=before)
