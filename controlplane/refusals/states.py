"""The configuration at a past revision and now: only the things that can explain one refusal."""

import json
from dataclasses import dataclass

from django.db import connection

from controlplane.policies.fields import Fields
from controlplane.policies.state import EntityKey, State, parents_of, read_state

#: Tenants above a tenant are at most this many levels; the edits allow fewer.
_LEVELS = 10

# The state of each thing before its first change after the revision.
_THEN = """
    SELECT DISTINCT ON (change.kind, change.name) change.kind, change.name, change.before
    FROM policies_change change
    JOIN policies_revision revision ON revision.id = change.revision_id
    WHERE revision.environment = %(environment)s AND revision.number > %(number)s
      AND (change.kind IN ('environment', 'tier', 'dependency', 'account', 'budget', 'descriptors')
           OR change.kind = 'tenant' AND change.name = ANY(%(tenants)s))
    ORDER BY change.kind, change.name, revision.number
"""


@dataclass(frozen=True)
class States:
    then: State
    now: State


def read_states(environment: str, number: int, tenant: str) -> States:
    """Everything but other tenants, at revision ``number`` and now. Raises ``NotFound``."""
    tenants = _with_parents(environment, tenant)
    now = read_state(environment, tenants=tenants)
    with connection.cursor() as cursor:
        cursor.execute(_THEN, {"environment": environment, "number": number, "tenants": tenants})
        rows = cursor.fetchall()
    then = dict(now)
    for kind, name, before in rows:
        if before is None:
            then.pop((kind, name), None)
        else:
            then[kind, name] = json.loads(before)
    return States(then, now)


def _with_parents(environment: str, tenant: str) -> list[str]:
    found = [tenant] if tenant else []
    while found and len(found) < _LEVELS:
        above = parents_of(environment, found[-1:]).get(found[-1], "")
        if not above or above in found:
            break
        found.append(above)
    return found


def tier_of(state: State, environment: str, tenant: str) -> str:
    """The tier that decides about a tenant; an unregistered one has the default tier."""
    fields = state.get(("tenant", tenant)) or {}
    return str(fields.get("tier") or (state.get(("environment", environment)) or {}).get("default_tier", ""))


def parent_of(state: State, tenant: str) -> str:
    return str((state.get(("tenant", tenant)) or {}).get("parent", ""))


def fields_of(state: State, thing: EntityKey | None) -> Fields:
    return state.get(thing, {}) if thing is not None else {}
