"""Writes thousands of tenants and quotas per statement: one statement per row costs a round trip each."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from controlplane.editing.revise import Revision
from controlplane.editing.rows.tenant_parents import keep_parents
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.history import ROWS_PER_STATEMENT, Changed, Progress, encode, in_parts
from controlplane.policies.limits import full_columns
from fuseboard.contract.limit_fields import LISTS, QUOTAS, Flag, LimitField, Number, fields_of

_PUT = """
    INSERT INTO policies_tenant
        (environment_id, key, title, tier_id, parent, suspended, deleted, changed_revision, version)
    SELECT %(environment)s, row.key, row.title, tier.id, row.parent, row.suspended, false, %(number)s, 1
    FROM json_to_recordset(%(rows)s::json)
        AS row(key text, title text, tier text, parent text, suspended boolean)
    JOIN policies_tier tier ON tier.environment_id = %(environment)s AND tier.name = row.tier
    ON CONFLICT (environment_id, key) DO UPDATE
    SET title = EXCLUDED.title, tier_id = EXCLUDED.tier_id, parent = EXCLUDED.parent,
        suspended = EXCLUDED.suspended, deleted = false,
        changed_revision = EXCLUDED.changed_revision, version = policies_tenant.version + 1
"""

_BURY = """
    UPDATE policies_tenant
    SET deleted = true, changed_revision = %(number)s, version = version + 1
    WHERE environment_id = %(environment)s AND key = ANY(%(keys)s)
"""

_ANNOUNCED = """
    SELECT tenant.key, quota.name, quota.expires_at, quota.announced_at
    FROM policies_tenantquota quota JOIN policies_tenant tenant ON tenant.id = quota.tenant_id
    WHERE tenant.environment_id = %(environment)s AND tenant.key = ANY(%(keys)s)
      AND quota.announced_at IS NOT NULL AND quota.expires_at IS NOT NULL
"""

_CLEAR_QUOTAS = """
    DELETE FROM policies_tenantquota quota
    USING policies_tenant tenant
    WHERE quota.tenant_id = tenant.id
      AND tenant.environment_id = %(environment)s AND tenant.key = ANY(%(keys)s)
"""


def _sql_type(field: LimitField) -> str:
    if isinstance(field, Number):
        return "integer"
    if isinstance(field, Flag):
        return "boolean"
    return "text[]" if field.name in LISTS else "text"


_COLUMNS = {
    "name": "text",
    **{field.name: _sql_type(field) for field in fields_of(QUOTAS)},
    "template": "text",
    "own": "text[]",
    "expires_at": "timestamptz",
    "returns_to": "jsonb",
    "announced_at": "timestamptz",
}
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
_PUT_QUOTAS = f"""
    INSERT INTO policies_tenantquota (tenant_id, {_NAMES})
    SELECT tenant.id, {", ".join(f'row."{name}"' for name in _COLUMNS)}
    FROM json_to_recordset(%(rows)s::json)
        AS row(key text, {", ".join(f'"{name}" {kind}' for name, kind in _COLUMNS.items())})
    JOIN policies_tenant tenant ON tenant.environment_id = %(environment)s AND tenant.key = row.key
"""  # noqa: S608 - names of columns, from above


def write_tenants(
    revision: Revision, changes: Sequence[Changed], *, progress: Progress | None = None
) -> None:
    """Create, change, remove and restore tenants. Their tiers must exist."""
    done = 0
    with connection.cursor() as cursor:
        if len(changes) > ROWS_PER_STATEMENT:
            # Check references with each statement instead of all at the commit. On a busy machine many
            # rows take longer than the usual timeout.
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET LOCAL statement_timeout = '60s'")
        for part in in_parts(changes):
            common: dict[str, Any] = {"environment": revision.environment, "number": revision.number}
            cleared = [change.name for change in part if _had_quotas(change)]
            put = [(change.name, change.after) for change in part if change.after is not None]
            buried = [change.name for change in part if change.after is None]
            announced = _announced(cursor, common | {"keys": cleared}) if cleared else {}
            quotas = [row for name, fields in put for row in _quota_rows(name, fields, announced)]
            if cleared:
                cursor.execute(_CLEAR_QUOTAS, {**common, "keys": cleared})
            if put:
                cursor.execute(_PUT, {**common, "rows": encode([_row(*pair) for pair in put])})
                if cursor.rowcount != len(put):
                    raise InvalidEdit({"tenants": ["A tenant has a tier that does not exist."]})
            if quotas:
                cursor.execute(_PUT_QUOTAS, {**common, "rows": encode(quotas)})
            if buried:
                cursor.execute(_BURY, {**common, "keys": buried})
            done += len(part)
            if progress is not None:
                progress("Writing tenants", done, len(changes))
    if moved := {change.name for change in changes if _moves(change)}:
        keep_parents(revision, moved)


def _moves(change: Changed) -> bool:
    """Return whether its parent changes, or whether tenants may belong to it that is removed."""
    before, after = change.before or {}, change.after or {}
    return change.after is None or before.get("parent", "") != after.get("parent", "")


def _had_quotas(change: Changed) -> bool:
    return any(field.startswith("quotas.") for field in change.before or ())


def _row(key: str, fields: Fields) -> Fields:
    own = {name: fields[name] for name in ("title", "tier", "suspended")}
    return {"key": key, "parent": fields.get("parent", ""), **own}


def _announced(cursor: Any, common: dict[str, Any]) -> dict[tuple[str, str, datetime], str]:
    """Return when the ends of temporary quotas were announced, so that no end is announced twice."""
    cursor.execute(_ANNOUNCED, common)
    return {(key, name, ends): at.isoformat() for key, name, ends, at in cursor.fetchall()}


def _quota_rows(key: str, fields: Fields, announced: dict[tuple[str, str, datetime], str]) -> list[Fields]:
    rows = []
    for name, columns in limits_in("quotas", fields).items():
        row = {**full_columns(columns), "name": name, "key": key}
        if announced and (ends := columns.get("expires_at")):
            row["announced_at"] = announced.get((key, name, datetime.fromisoformat(ends)))
        rows.append(row)
    return rows
