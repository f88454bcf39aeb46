"""What protects every pod of an environment, whatever it calls: as an edit, and what it would change."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.revise import revise
from controlplane.errors import InvalidEdit
from controlplane.policies.conflicts import check_fields
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, environment_fields
from controlplane.policies.protection import POD, PROTECTION, Document, changed, differing, flat_protection
from controlplane.validation import Problems
from fuseboard.contract.protection import PodProtection
from fuseboard.contract.protection_fields import MAX_OBSERVE_S, OBSERVED_PARTS


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
    problems = Problems()
    problems.reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        row = environment_of(environment)
        whole, before = environment_fields(row), flat_protection(row.protection)
        check_fields(
            environment=environment,
            kind="environment",
            name=environment,
            prefix=f"{PROTECTION}.",
            expected=expected_revision,
            making=revision.number,
            now=whole,
        )
        row.protection = _changed(problems, row.protection, protection, observe_for_s or {})
        row.save(update_fields=["protection"])
        revision.audit(
            "pod_protection.set",
            target_kind="environment",
            target_name=environment,
            before=before,
            after=flat_protection(row.protection),
        )
        revision.change("environment", environment, before=whole, after=environment_fields(row))
    return revision.number


def preview_pod_protection(
    *, environment: str, protection: Mapping[str, Any] | str, observe_for_s: Mapping[str, int] | None = None
) -> tuple[Fields, Fields]:
    """Return the fields before and after the edit. Nothing is written. Raises ``InvalidEdit``."""
    now = environment_of(environment).protection
    after = _changed(Problems(), now, protection, observe_for_s or {})
    # What belongs to no part has a value also while nothing is stored.
    alone = {"routes": [], "retries_per_s": PodProtection().retries_per_s}
    return flat_protection(alone | now), flat_protection(alone | after)


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
        environment=environment, protection=protection, observe_for_s=observe_for_s
    )
    row = environment_of(environment)
    check_fields(
        environment=environment,
        kind="environment",
        name=environment,
        prefix=f"{PROTECTION}.",
        expected=expected_revision,
        making=row.revision + 1,
        now=environment_fields(row),
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


def _changed(
    problems: Problems,
    now: Mapping[str, Any],
    protection: Mapping[str, Any] | str,
    observe_for_s: Mapping[str, int],
) -> Document:
    at = timezone.now()
    for part, seconds in observe_for_s.items():
        if part not in OBSERVED_PARTS:
            problems.add(f"observe_for_s.{part}", f"Choose one of: {', '.join(OBSERVED_PARTS)}.")
        problems.whole(f"observe_for_s.{part}", seconds, 0, MAX_OBSERVE_S)
    if observe_for_s and not isinstance(protection, Mapping):
        problems.add("observe_for_s", "Leave it out: protection is off, so that no part observes.")
    problems.settle()
    patch: Any = protection
    if observe_for_s and isinstance(protection, Mapping):
        until = _until(observe_for_s, at)
        patch = {**protection, "observe": {**protection.get("observe", {}), **until}}
    found = changed(problems, now, patch, POD, now_us=int(at.timestamp() * 1_000_000))
    problems.settle()
    return found
