"""Everything that a form sets of a dependency, as one edit; and what it would change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.audit.actor import Actor
from controlplane.editing.edits.dependencies import check_breaker, check_breaker_row
from controlplane.editing.revise import revise
from controlplane.editing.rows.versioned_rows import DependencyEdit
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.conflicts import check_version
from controlplane.policies.fields import Fields, dependency_fields
from controlplane.policies.models import MAX_MS, MAX_PART_MS, STREAM_COLUMNS, Dependency
from controlplane.policies.protection import CALL, PROTECTION, changed, differing
from controlplane.validation import Problems
from fuseboard.contract.policy import MAX_WAIT_MS


@dataclass(frozen=True, kw_only=True)
class DependencySettings:
    breaker: Mapping[str, int]
    timeout_ms: int
    wait_ms: int
    first_part_ms: int = 0
    between_parts_ms: int = 0
    fallback_note: str
    #: As ``set_protection`` takes it.
    protection: Mapping[str, Any] | str


def set_dependency(
    *,
    environment: str,
    dependency: str,
    settings: DependencySettings,
    expected_version: int | None,
    reason: str,
    actor: Actor,
) -> int:
    """Change the breaker, the times, the fallback note and the protection in one revision."""
    problems = Problems()
    _check(problems, settings)
    problems.reason(reason)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        _apply(edit.row, settings)
        edit.finish("dependency.set")
    return revision.number


def preview_dependency(
    *, environment: str, dependency: str, settings: DependencySettings
) -> tuple[Fields, Fields]:
    """Return the fields before and after the edit. Nothing is written. Raises ``InvalidEdit``."""
    problems = Problems()
    _check(problems, settings)
    problems.settle()
    row = Dependency.objects.filter(environment_id=environment, name=dependency).first()
    if row is None:
        raise NotFound("dependency", dependency)
    before = dependency_fields(row)
    _apply(row, settings)
    return before, dependency_fields(row)


def scheduled_settings(
    *, environment: str, dependency: str, settings: DependencySettings, expected_version: int
) -> dict[str, Any]:
    """Return the edit as a plan for later, with only the values that differ. Nothing is written.

    Raises ``InvalidEdit`` if a value is wrong, or if none differs, and ``EditConflict``: with the values of
    an older version, the plan would revert what another person changed.
    """
    before, after = preview_dependency(environment=environment, dependency=dependency, settings=settings)
    check_version(
        environment=environment,
        target_kind="dependency",
        target_name=dependency,
        expected=expected_version,
        now=before,
    )
    differ = {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}
    breaker = {column: value for column, value in settings.breaker.items() if f"breaker.{column}" in differ}
    plain = ("timeout_ms", "wait_ms", *STREAM_COLUMNS, "fallback_note")
    planned: dict[str, Any] = {name: getattr(settings, name) for name in plain if name in differ}
    if breaker:
        planned["breaker"] = breaker
    protection = settings.protection
    if any(field.startswith(f"{PROTECTION}.") for field in differ):
        planned[PROTECTION] = protection if isinstance(protection, str) else differing(protection, differ)
    if not planned:
        raise InvalidEdit({"starts": ["Nothing is changed. Change a value first."]})
    return {"dependencies": {dependency: planned}}


def _check(problems: Problems, settings: DependencySettings) -> None:
    check_breaker(problems, settings.breaker)
    problems.whole("timeout_ms", settings.timeout_ms, 1, MAX_MS)
    problems.whole("wait_ms", settings.wait_ms, 0, MAX_WAIT_MS)
    for column in STREAM_COLUMNS:
        problems.whole(column, getattr(settings, column), 0, MAX_PART_MS)
    problems.text("fallback_note", settings.fallback_note, 500, lines=True)


def _apply(row: Dependency, settings: DependencySettings) -> None:
    for column, value in settings.breaker.items():
        setattr(row, column, value)
    for column in ("timeout_ms", "wait_ms", *STREAM_COLUMNS):
        setattr(row, column, getattr(settings, column))
    row.fallback_note = settings.fallback_note
    problems = Problems()
    row.protection = changed(problems, row.protection, settings.protection, CALL)
    problems.settle()
    check_breaker_row(row)
