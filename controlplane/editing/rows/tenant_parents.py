"""Parents of tenants: a user belongs to a team, a team to an organisation."""

from collections.abc import Collection, Iterator, Mapping

from django.db import connection

from controlplane.editing.revise import Revision
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.models import Tenant
from controlplane.policies.state import EntityKey, State, parents_of
from fuseboard.contract.policy import MAX_PARENTS

TOO_DEEP = f"A tenant has at most {MAX_PARENTS} levels above it: an organisation and a team."

# One join per allowed level, so a circle counts as too deep.
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
    """Publish the tenants below again, after tenants were moved or removed.

    Raises ``InvalidEdit`` for a parent that does not exist, and for too many levels.
    """
    below = Tenant.objects.filter(environment_id=revision.environment, parent__in=list(moved), deleted=False)
    # The index has the second condition, so Postgres can use it.
    below.exclude(parent="").update(changed_revision=revision.number)
    with connection.cursor() as cursor:
        cursor.execute(_WRONG, [revision.environment])
        wrong = cursor.fetchone()
    if wrong is not None:
        key, parent, missing = wrong
        message = f"{key} belongs to {parent}, which is not registered." if missing else f"{key}: {TOO_DEEP}"
        raise InvalidEdit({"parent": [message]})


def levels_above(tenant: str, parents: Mapping[str, str]) -> int:
    """Return the number of levels above a tenant. In a circle it is more than the allowed number."""
    levels = 0
    while levels <= MAX_PARENTS and (tenant := parents.get(tenant, "")):
        levels += 1
    return levels


def wrong_parents(
    environment: str, state: State, wanted: Mapping[EntityKey, Fields | None], moved: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield tenant and message for each wrong parent in ``moved`` (tenant -> parent; empty for none).

    Tenants below them that are not in the plan are checked when it is applied.
    """
    if not any(moved.values()):
        return
    after = {**state, **wanted}
    parents = {
        name: fields.get("parent", "")
        for (kind, name), fields in after.items()
        if kind == "tenant" and fields
    }
    removed = {name for (kind, name), fields in after.items() if kind == "tenant" and not fields}
    unknown = set(moved.values())
    for _ in range(MAX_PARENTS + 1):
        unknown -= parents.keys() | removed | {""}
        found = parents_of(environment, unknown)
        parents |= found
        unknown = set(found.values())
    for name, parent in moved.items():
        if parent and parent not in parents:
            yield name, f"There is no tenant {parent!r}."
        elif levels_above(name, parents) > MAX_PARENTS:
            yield name, TOO_DEEP
