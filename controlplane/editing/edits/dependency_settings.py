"""Everything that a form sets of a dependency, as one edit; and what it would change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import EntityEdit, preview_edit, problems_by_field, save_call
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.models import OPTIONAL_COLUMNS
from controlplane.policies.protection import PROTECTION, differing

_PLAIN = ("timeout_ms", "wait_ms", *OPTIONAL_COLUMNS, "fallback_note")


@dataclass(frozen=True, kw_only=True)
class DependencySettings:
    breaker: Mapping[str, int]
    timeout_ms: int
    wait_ms: int
    first_part_ms: int = 0
    between_parts_ms: int = 0
    store_wait_ms: int = 0
    latency_rise_percent: int = 0
    fallback_note: str
    #: The change that ``set_protection`` takes.
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
    edit = _edit(environment, dependency, settings, expected_version)
    return save_call(edit, reason=reason, actor=actor, action="dependency.set")


def preview_dependency(
    *, environment: str, dependency: str, settings: DependencySettings, expected_version: int | None = None
) -> tuple[Fields, Fields]:
    """Return the fields before and after the edit. Nothing is written. Raises ``InvalidEdit``."""
    edit = _edit(environment, dependency, settings, expected_version)
    with problems_by_field(edit):
        found = preview_edit(edit)
    return found.before or {}, found.after or {}


def scheduled_settings(
    *, environment: str, dependency: str, settings: DependencySettings, expected_version: int
) -> dict[str, Any]:
    """Return the edit as a plan for later, with only the values that differ. Nothing is written.

    Raises ``InvalidEdit`` if a value is wrong, or if none differs, and ``EditConflict``: with the values of
    an older version, the plan would revert what another person changed.
    """
    before, after = preview_dependency(
        environment=environment, dependency=dependency, settings=settings, expected_version=expected_version
    )
    differ = {field for field in before.keys() | after.keys() if before.get(field) != after.get(field)}
    breaker = {column: value for column, value in settings.breaker.items() if f"breaker.{column}" in differ}
    planned: dict[str, Any] = {name: getattr(settings, name) for name in _PLAIN if name in differ}
    if breaker:
        planned["breaker"] = breaker
    protection = settings.protection
    if any(field.startswith(f"{PROTECTION}.") for field in differ):
        planned[PROTECTION] = protection if isinstance(protection, str) else differing(protection, differ)
    if not planned:
        raise InvalidEdit({"starts": ["Nothing is changed. Change a value first."]})
    return {"dependencies": {dependency: planned}}


def _edit(environment: str, dependency: str, settings: DependencySettings, version: int | None) -> EntityEdit:
    typed = {name: getattr(settings, name) for name in _PLAIN} | {PROTECTION: settings.protection}
    if settings.breaker:
        typed["breaker"] = dict(settings.breaker)
    return EntityEdit(environment, "dependency", dependency, typed=typed, version=version)
