"""Checks the parents that a plan gives to tenants."""

from collections.abc import Iterator, Mapping

from controlplane.editing.rows.tenant_parents import TOO_DEEP, levels_above
from controlplane.policies.fields import Fields
from controlplane.policies.state import State, Thing, parents_of
from fuseboard.contract.policy import MAX_PARENTS


def wrong_parents(
    environment: str, state: State, wanted: Mapping[Thing, Fields | None], moved: Mapping[str, str]
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
