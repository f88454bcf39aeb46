from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import (
    EntityEdit,
    check_scheduled,
    preview_edit,
    problems_by_field,
    save_call,
)
from controlplane.errors import NotFound
from controlplane.policies.fields import Fields
from controlplane.policies.protection import PROTECTION
from controlplane.policies.protection_presets import RETRY_WAITS_MS, merged_changes, preset_change
from controlplane.validation import Problems


class Times(TypedDict, total=False):
    """Times of the calls to a dependency, mostly in ms. One that is left out, or is ``None``, stays."""

    timeout_ms: int | None
    wait_ms: int | None
    first_part_ms: int | None
    between_parts_ms: int | None
    store_wait_ms: int | None
    latency_rise_percent: int | None


class Texts(TypedDict):
    title: str
    owner: str
    fallback_note: str
    runbook: str | None


class NewDependency(Times, total=False):
    """A value that is left out, or is ``None``, is the default of its kind."""

    title: str
    owner: str
    fallback_note: str
    runbook: str | None
    breaker: Mapping[str, int] | None
    #: The change that ``set_protection`` takes. Without it, nothing protects pods from the dependency.
    protection: Mapping[str, Any] | str | None


def create_dependency(
    *,
    environment: str,
    dependency: str,
    kind: str,
    reason: str,
    actor: Actor,
    **fields: Unpack[NewDependency],
) -> int:
    """Register a dependency. ``breaker`` and the times replace values of the preset of its kind."""
    edit = _new(environment, dependency, {"kind": kind, **fields})
    missing = {"runbook": NotFound("runbook", fields.get("runbook") or "")}
    return save_call(edit, reason=reason, actor=actor, action="dependency.created", refers=missing)


def preview_new_dependency(environment: str, dependency: str, given: Mapping[str, Any]) -> Fields:
    """Return the fields of a dependency as ``create_dependency`` would make it. Nothing is written."""
    edit = _new(environment, dependency, given)
    with problems_by_field(edit):
        return preview_edit(edit).after or {}


def scheduled_new_dependency(environment: str, dependency: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the new dependency as a plan for later. Nothing is written."""
    edit = _new(environment, dependency, given)
    with problems_by_field(edit):
        return check_scheduled(edit)


def _new(environment: str, dependency: str, given: Mapping[str, Any]) -> EntityEdit:
    typed = {name: value for name, value in given.items() if value is not None}
    return EntityEdit(environment, "dependency", dependency, typed=typed, creates=True)


def set_breaker_policy(
    *,
    environment: str,
    dependency: str,
    breaker: Mapping[str, int],
    expected_version: int | None,
    reason: str,
    actor: Actor,
    **times: Unpack[Times],
) -> int:
    """Change the given values of the breaker's policy. The others stay."""
    given = {column: value for column, value in times.items() if value is not None}
    typed = {"breaker": dict(breaker)} | given if breaker else given
    edit = EntityEdit(environment, "dependency", dependency, typed=typed, version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="breaker_policy.set")


def set_protection(
    *,
    environment: str,
    dependency: str,
    protection: Mapping[str, Any] | str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    preset: Mapping[str, str] | None = None,
) -> int:
    """Change what protects a pod from this dependency, see ``fuseboard.contract.protection``.

    Values that are left out stay; those of a part that was off get its defaults. ``None`` or ``"off"``
    turns a part, or all of it, off. ``preset`` names presets, which ``protection`` overrides; that of the
    retries also sets how long calls wait for a limit of the vendor.
    """
    problems = Problems()
    preset = preset or {}
    typed: dict[str, Any] = {PROTECTION: merged_changes(preset_change(problems, preset), protection)}
    problems.settle()
    if (waits := RETRY_WAITS_MS.get(preset.get("retry", ""))) is not None:
        typed["wait_ms"] = waits
    edit = EntityEdit(environment, "dependency", dependency, typed=typed, version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="protection.set")


def describe_dependency(
    *,
    environment: str,
    dependency: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    **texts: Unpack[Texts],
) -> int:
    """Change the texts about a dependency."""
    runbook = texts["runbook"] or ""
    typed = {**texts, "runbook": runbook}
    edit = EntityEdit(environment, "dependency", dependency, typed=typed, version=expected_version)
    missing = {"runbook": NotFound("runbook", runbook)}
    return save_call(edit, reason=reason, actor=actor, action="dependency.described", refers=missing)
