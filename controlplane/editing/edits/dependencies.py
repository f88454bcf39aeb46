from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_thing import ThingEdit, save_call
from controlplane.editing.revise import revise
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.fields import dependency_fields
from controlplane.policies.models import (
    BREAKER_RANGES,
    MAX_MS,
    MAX_PART_MS,
    OPEN_TOO_SHORT,
    STREAM_PRESETS,
    WINDOW_TOO_FEW,
    Dependency,
    Kind,
    Runbook,
    breaker_preset,
)
from controlplane.policies.protection import CALL, PROTECTION, changed
from controlplane.policies.protection_presets import (
    RETRY_WAITS_MS,
    merged_changes,
    preset_change,
)
from controlplane.policies.runbook_texts import runbook_row
from controlplane.validation import Problems
from fuseboard.contract.policy import MAX_WAIT_MS


class Times(TypedDict, total=False):
    """Times of the calls to a dependency, in ms. One that is left out, or is ``None``, stays."""

    timeout_ms: int | None
    wait_ms: int | None
    first_part_ms: int | None
    between_parts_ms: int | None


def create_dependency(
    *,
    environment: str,
    dependency: str,
    kind: str,
    reason: str,
    actor: Actor,
    title: str = "",
    owner: str = "",
    fallback_note: str = "",
    timeout_ms: int = 30_000,
    wait_ms: int = 0,
    first_part_ms: int | None = None,
    between_parts_ms: int | None = None,
    runbook: str | None = None,
    breaker: Mapping[str, int] | None = None,
    protection: Mapping[str, Any] | str | None = None,
) -> int:
    """Register a dependency. ``breaker`` and the times of a stream replace values of the preset of its kind.

    Without ``protection``, nothing protects pods from it.
    """
    problems = Problems()
    problems.slug("dependency", dependency)
    if kind not in Kind.values:
        problems.add("kind", f"Choose one of: {', '.join(Kind.values)}.")
    problems.text("title", title, 200)
    problems.text("owner", owner, 200)
    problems.text("fallback_note", fallback_note, 500, lines=True)
    problems.whole("timeout_ms", timeout_ms, 1, MAX_MS)
    problems.whole("wait_ms", wait_ms, 0, MAX_WAIT_MS)
    columns = breaker_preset(kind, breaker or ()) | dict(breaker or {})
    _check_breaker(problems, columns)
    parts = {"first_part_ms": first_part_ms, "between_parts_ms": between_parts_ms}
    given = {column: value for column, value in parts.items() if value is not None}
    for column, value in given.items():
        problems.whole(column, value, 0, MAX_PART_MS)
    columns |= STREAM_PRESETS.get(kind, {}) | given
    problems.reason(reason)
    problems.settle()
    protected = changed(problems, {}, protection, CALL)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        if Dependency.objects.filter(environment_id=environment, name=dependency).exists():
            raise InvalidEdit({"dependency": ["A dependency with this name already exists."]})
        row = Dependency(
            environment_id=environment,
            name=dependency,
            kind=kind,
            title=title,
            owner=owner,
            fallback_note=fallback_note,
            timeout_ms=timeout_ms,
            wait_ms=wait_ms,
            protection=protected,
            runbook=_runbook(runbook),
            **columns,
        )
        _check_breaker_row(row)
        row.save()
        after = dependency_fields(row)
        revision.audit(
            "dependency.created", target_kind="dependency", target_name=dependency, before=None, after=after
        )
        revision.change("dependency", dependency, before=None, after=after)
    return revision.number


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
    edit = ThingEdit(
        environment=environment, kind="dependency", name=dependency, typed=typed, version=expected_version
    )
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
    edit = ThingEdit(
        environment=environment, kind="dependency", name=dependency, typed=typed, version=expected_version
    )
    return save_call(edit, reason=reason, actor=actor, action="protection.set")


def describe_dependency(
    *,
    environment: str,
    dependency: str,
    title: str,
    owner: str,
    fallback_note: str,
    runbook: str | None,
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> int:
    """Change the texts about a dependency."""
    typed = {"title": title, "owner": owner, "fallback_note": fallback_note, "runbook": runbook or ""}
    edit = ThingEdit(
        environment=environment, kind="dependency", name=dependency, typed=typed, version=expected_version
    )
    return save_call(
        edit, reason=reason, actor=actor, action="dependency.described", refers={"runbook": runbook or ""}
    )


def _check_breaker(problems: Problems, columns: Mapping[str, object]) -> None:
    for column, value in columns.items():
        if column in BREAKER_RANGES:
            problems.whole(column, value, *BREAKER_RANGES[column])
        else:
            problems.add(column, "A breaker has no such setting.")


def _check_breaker_row(row: Dependency) -> None:
    if row.open_max_ms < row.open_ms:
        raise InvalidEdit({"open_max_ms": [OPEN_TOO_SHORT]})
    if 0 < row.window_calls < row.minimum_calls:
        raise InvalidEdit({"window_calls": [WINDOW_TOO_FEW]})


def _runbook(slug: str | None) -> Runbook | None:
    if slug is None:
        return None
    row = runbook_row(slug)
    if row is None:
        raise NotFound("runbook", slug)
    return row
