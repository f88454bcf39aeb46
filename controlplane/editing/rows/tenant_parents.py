"""Tenants that belong to others: user, team, organisation."""

from collections.abc import Collection, Mapping

from django.db import connection

from controlplane.editing.revise import Revision
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Tenant
from fuseboard.contract.policy import MAX_PARENTS

TOO_DEEP = f"A tenant has at most {MAX_PARENTS} levels above it: an organisation and a team."

# Joined as often as there may be levels, so a circle is too deep as well.
_WRONG = """
    SELECT tenant.key, tenant.parent, above.id IS NULL
    FROM policies_tenant tenant
    LEFT JOIN policies_tenant above
      ON above.environment_id = tenant.environment_id AND above.key = tenant.parent AND NOT above.deleted
    LEFT JOIN policies_tenant top
      ON top.environment_id = tenant.environment_id AND top.key = above.parent AND NOT top.deleted
    WHERE tenant.environment_id = %s AND tenant.parent <> '' AND NOT tenant.deleted
      AND (above.id IS NULL OR top.parent <> '')
    LIMIT 1
"""


def keep_parents(revision: Revision, moved: Collection[str]) -> None:
    """After tenants got another parent, or were removed: whoever is below them is published again.

    Raises ``InvalidEdit`` for a parent that is not there, and for too many levels.
    """
    below = Tenant.objects.filter(environment_id=revision.environment, parent__in=list(moved), deleted=False)
    # The second condition is the index's.
    below.exclude(parent="").update(changed_revision=revision.number)
    with connection.cursor() as cursor:
        cursor.execute(_WRONG, [revision.environment])
        wrong = cursor.fetchone()
    if wrong is not None:
        key, parent, missing = wrong
        message = f"{key} belongs to {parent}, which is not registered." if missing else f"{key}: {TOO_DEEP}"
        raise InvalidEdit({"parent": [message]})


def levels_above(tenant: str, parents: Mapping[str, str]) -> int:
    """How many levels are above a tenant, by the parent of each; more than allowed in a circle."""
    levels = 0
    while levels <= MAX_PARENTS and (tenant := parents.get(tenant, "")):
        levels += 1
    return levels
