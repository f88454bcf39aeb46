"""Forgets a tenant that is erased from Postgres: what is in memory would be written again."""

from controlplane.gateway.servers.fleet_sums import FleetSums
from controlplane.series.kinds import RULE, TENANT, tenant_number


def erase_tenant(sums: FleetSums, number: int, *, before: float) -> bool:
    """Forget what was counted of a tenant until ``before`` (wall time). Returns whether it was there."""
    series = sums.series
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
    in_lists = sums.tops.erase(number)
    sums.descriptors.erase_examples()
    in_usage = sums.usage.erase(number, at=before)
    return sums.tenant_hours.erase(number, before=before) or in_lists or in_usage
