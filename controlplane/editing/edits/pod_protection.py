"""Edits the protection of every pod of an environment, and previews the edit."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import (
    EntityEdit,
    preview_edit,
    problems_by_field,
    save_call,
    section_of,
)
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.protection import PROTECTION, differing
from controlplane.validation import Problems
from fuseboard.contract.protection import PodProtection
from fuseboard.contract.protection_fields import MAX_OBSERVE_S, OBSERVED_PARTS

_fields = section_of(PROTECTION)
#: Values that belong to no part, while nothing is stored.
_ALONE = {f"{PROTECTION}.routes": [], f"{PROTECTION}.retries_per_s": PodProtection().retries_per_s}


def set_pod_protection(
    *,
    environment: str,
    protection: Mapping[str, Any] | str,
    reason: str,
    actor: Actor,
    observe_for_s: Mapping[str, int] | None = None,
    expected_revision: int | None = None,
) -> int:
    """Change what protects every pod of the environment, whatever it calls.

    Values that are left out stay. ``None`` or ``"off"`` turns a part, or all of it, off. ``observe_for_s``
    names parts that only decide and count for this time from now; 0 ends this. Raises ``EditConflict`` if
    the protection was changed after ``expected_revision``. Other edits do not conflict.
    """
    edit = _edit(environment, protection, observe_for_s, expected_revision)
    return save_call(edit, reason=reason, actor=actor, action="pod_protection.set", audited=_fields)


def preview_pod_protection(
    *,
    environment: str,
    protection: Mapping[str, Any] | str,
    observe_for_s: Mapping[str, int] | None = None,
    expected_revision: int | None = None,
) -> tuple[Fields, Fields]:
    """Return the fields before and after the edit. Nothing is written. Raises as ``set_pod_protection``."""
    edit = _edit(environment, protection, observe_for_s, expected_revision)
    with problems_by_field(edit):
        found = preview_edit(edit)
    return _ALONE | _fields(found.before or {}), _ALONE | _fields(found.after or {})


def scheduled_pod_protection(
    *,
    environment: str,
    protection: Mapping[str, Any],
    observe_for_s: Mapping[str, int],
    expected_revision: int,
    due_at: datetime,
) -> dict[str, Any]:
    """Return the edit as a plan for ``due_at``, with only the values that differ. Nothing is written.

    A part observes for its time from ``due_at``. Raises ``InvalidEdit`` if a value is wrong or if none
    differs, and ``EditConflict`` as ``set_pod_protection`` does.
    """
    before, after = preview_pod_protection(
        environment=environment,
        protection=protection,
        observe_for_s=observe_for_s,
        expected_revision=expected_revision,
    )
    differ = {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}
    until = _until(observe_for_s, due_at)
    planned = differing({**protection, **({"observe": until} if until else {})}, differ)
    if not planned:
        raise InvalidEdit({"starts": ["Nothing is changed. Change a value first."]})
    return {PROTECTION: planned}


def _until(observe_for_s: Mapping[str, int], at: datetime) -> dict[str, int]:
    at_us = int(at.timestamp() * 1_000_000)
    return {
        f"{part}_until_us": at_us + seconds * 1_000_000 if seconds else 0
        for part, seconds in observe_for_s.items()
    }


def _edit(
    environment: str,
    protection: Mapping[str, Any] | str,
    observe_for_s: Mapping[str, int] | None,
    revision: int | None,
) -> EntityEdit:
    problems = Problems()
    for part, seconds in (observe_for_s or {}).items():
        if part not in OBSERVED_PARTS:
            problems.add(f"observe_for_s.{part}", f"Choose one of: {', '.join(OBSERVED_PARTS)}.")
        problems.whole(f"observe_for_s.{part}", seconds, 0, MAX_OBSERVE_S)
    if observe_for_s and not isinstance(protection, Mapping):
        problems.add("observe_for_s", "Leave it out: protection is off, so that no part observes.")
    problems.settle()
    if observe_for_s and isinstance(protection, Mapping):
        until = _until(observe_for_s, timezone.now())
        protection = {**protection, "observe": {**protection.get("observe", {}), **until}}
    typed = {PROTECTION: protection}
    return EntityEdit(environment, "environment", environment, typed=typed, version=revision)
