"""Leaves a tenant out of the figures that gateways wrote last, which list the busiest tenants."""

from controlplane.fleet.models import Figures

#: Fields of the document that are lists with a tenant in each row, see ``gateway.servers.figures``.
_BY_TENANT = ("tenants", "usage", "rules")


def erase_tenant(environment: str, tenant: str) -> None:
    """In a transaction. A gateway that runs writes its figures again, without a tenant that is idle."""
    rows = list(Figures.objects.select_for_update().filter(environment=environment))
    for row in rows:
        for field in _BY_TENANT:
            row.document[field] = [one for one in row.document.get(field, ()) if one["tenant"] != tenant]
    Figures.objects.bulk_update(rows, ["document"])
