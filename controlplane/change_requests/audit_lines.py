"""Audit entries of an edit, written when its change request is applied."""

from typing import Any

from controlplane.approvals.models import ChangeRequest
from controlplane.editing.revise import Revision
from controlplane.policies.history import Changed, Fields
from controlplane.policies.models import Dependency, Template, Tenant, Tier

_ROWS: dict[str, tuple[type[Any], str]] = {
    "tenant": (Tenant, "key"),
    "tier": (Tier, "name"),
    "dependency": (Dependency, "name"),
    "template": (Template, "name"),
}


def write_audit_lines(row: ChangeRequest, changes: list[Changed], revision: Revision) -> None:
    """Write the entries in the revision being made, before its rows are written."""
    things = {(change.kind, change.name): change for change in changes}
    versions = _versions(row.environment, [entry for entry in row.entries if "before" not in entry])
    for entry in row.entries:
        thing = things.get((entry["kind"], entry["name"]))
        before, after = entry.get("before"), entry.get("after")
        if thing is not None and "before" not in entry:
            version = versions.get((thing.kind, thing.name), 0)
            before, after = _at(thing.before, version), _at(thing.after, version + 1)
        revision.audit(
            entry["action"],
            target_kind=entry["kind"],
            target_name=entry["name"],
            before=_numbered(before, revision.number - 1),
            after=_numbered(after, revision.number),
        )


def _versions(environment: str, entries: list[Fields]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for kind, (model, name) in _ROWS.items():
        names = [entry["name"] for entry in entries if entry["kind"] == kind]
        rows = model._default_manager.filter(**{"environment_id": environment, f"{name}__in": names})
        found |= {(kind, key): version for key, version in rows.values_list(name, "version")}
    return found


def _at(fields: Fields | None, version: int) -> Fields | None:
    return None if fields is None else {**fields, "version": version}


def _numbered(fields: Fields | None, number: int) -> Fields | None:
    """Replace the revision that an entry names. It has another number than when the request was made."""
    return {**fields, "revision": number} if fields and "revision" in fields else fields
