from collections.abc import Mapping
from typing import Any

from controlplane.audit.actor import Actor
from controlplane.editing.revise import revise
from controlplane.editing.rows.versioned_rows import DependencyEdit
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
from controlplane.policies.protection import CALL, changed
from controlplane.policies.protection_presets import (
    RETRY_WAITS_MS,
    merged_changes,
    preset_change,
)
from controlplane.policies.runbook_texts import runbook_row
from controlplane.validation import Problems
from fuseboard.contract.policy import MAX_WAIT_MS


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
    check_breaker(problems, columns)
    parts = {"first_part_ms": first_part_ms, "between_parts_ms": between_parts_ms}
    columns |= STREAM_PRESETS.get(kind, {}) | _checked_parts(problems, parts)
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
        check_breaker_row(row)
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
    timeout_ms: int | None = None,
    wait_ms: int | None = None,
    first_part_ms: int | None = None,
    between_parts_ms: int | None = None,
) -> int:
    """Change the given values of the breaker's policy. The others stay."""
    problems = Problems()
    check_breaker(problems, breaker)
    if timeout_ms is not None:
        problems.whole("timeout_ms", timeout_ms, 1, MAX_MS)
    if wait_ms is not None:
        problems.whole("wait_ms", wait_ms, 0, MAX_WAIT_MS)
    parts = {"first_part_ms": first_part_ms, "between_parts_ms": between_parts_ms}
    columns = {**breaker, **_checked_parts(problems, parts)}
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        for column, value in columns.items():
            setattr(edit.row, column, value)
        if timeout_ms is not None:
            edit.row.timeout_ms = timeout_ms
        if wait_ms is not None:
            edit.row.wait_ms = wait_ms
        check_breaker_row(edit.row)
        edit.finish("breaker_policy.set")
    return revision.number


def _checked_parts(problems: Problems, parts: Mapping[str, int | None]) -> dict[str, int]:
    """Return the given times of a stream. Zero is none."""
    given = {column: value for column, value in parts.items() if value is not None}
    for column, value in given.items():
        problems.whole(column, value, 0, MAX_PART_MS)
    return given


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
    patch = merged_changes(preset_change(problems, preset or {}), protection)
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        edit.row.protection = changed(problems, edit.row.protection, patch, CALL)
        problems.settle()
        edit.row.wait_ms = RETRY_WAITS_MS.get((preset or {}).get("retry", ""), edit.row.wait_ms)
        edit.finish("protection.set")
    return revision.number


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
    problems = Problems()
    problems.text("title", title, 200)
    problems.text("owner", owner, 200)
    problems.text("fallback_note", fallback_note, 500, lines=True)
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        edit.row.title, edit.row.owner, edit.row.fallback_note = title, owner, fallback_note
        edit.row.runbook = _runbook(runbook)
        edit.finish("dependency.described")
    return revision.number


def check_breaker(problems: Problems, columns: Mapping[str, object]) -> None:
    for column, value in columns.items():
        if column in BREAKER_RANGES:
            problems.whole(column, value, *BREAKER_RANGES[column])
        else:
            problems.add(column, "A breaker has no such setting.")


def check_breaker_row(row: Dependency) -> None:
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
