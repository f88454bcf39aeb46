"""The form of a dependency's settings: what it displays, and what was typed as the edit takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.editing.edits.dependency_settings import DependencySettings
from controlplane.phrases import range_words
from controlplane.policies.models import (
    BREAKER_RANGES,
    MAX_MS,
    MAX_PART_MS,
    STREAM_COLUMNS,
    Change,
    Dependency,
)
from controlplane.policies.protection import CALL, NEW_PARTS, check_patch
from controlplane.policies.protection_presets import (
    PRESETS,
    RETRY_WAITS_MS,
    preset_of_kind,
    wait_of_kind,
)
from controlplane.policies.setting_labels import BREAKER, CALL_PARTS, CALLS
from controlplane.policies.sizing import bulkhead_words
from controlplane.validation import Problems
from dashboard.setting_controls import (
    Control,
    Group,
    Typed,
    part_group,
    setting_values,
)
from fuseboard.contract.policy import MAX_WAIT_MS
from fuseboard.contract.protection_fields import CALL_SETTINGS, TIERS

_HINTS = {"consecutive_failures": "0: not used", "window_calls": "0: all in the window"}
#: Part -> the presets that fill in its fields.
_PRESETS = {"": "sla", "bulkhead": "bulkhead", "retry": "retry"}


def suggests(row: Dependency) -> bool:
    """Whether the form suggests a protection: the API or a file made the dependency without one."""
    if row.protection:
        return False
    changes = Change.objects.filter(
        kind="dependency", name=row.name, revision__environment=row.environment_id
    )
    # A file numbers versions by revisions, so the version does not say whether people edited it.
    newest = changes.order_by("-revision").first()
    return newest is not None and newest.before is None


def typed_settings(data: Mapping[str, str]) -> DependencySettings:
    """Raises ``InvalidEdit`` with every field that is no number."""
    typed = Typed(data)
    settings = DependencySettings(
        breaker={column: typed.number(f"breaker.{column}") for column in BREAKER},
        timeout_ms=typed.number("timeout_ms"),
        wait_ms=typed.number("wait_ms"),
        **{column: typed.number(column) if column in data else 0 for column in STREAM_COLUMNS},
        fallback_note=data.get("fallback_note", "").strip(),
        protection=typed.parts(CALL_SETTINGS),
    )
    typed.settle()
    return settings


def values_of(row: Dependency, presets: Mapping[str, str]) -> dict[str, str]:
    """The values in the inputs: the row, with the values of presets that the address names.

    A dependency that was never edited and has no protection shows the presets of its kind, switched on.
    """
    suggested = not any(presets.values()) and suggests(row)
    values = {f"breaker.{column}": str(getattr(row, column)) for column in BREAKER}
    columns = ("timeout_ms", "wait_ms", *STREAM_COLUMNS, "fallback_note")
    values |= {name: str(getattr(row, name)) for name in columns}
    document: dict[str, Any] = dict(row.protection)
    if suggested:
        document = preset_of_kind(row.kind, timeout_ms=row.timeout_ms)
        values["wait_ms"] = str(row.wait_ms or wait_of_kind(row.kind))
    elif (retry := presets.get("retry", "")) in RETRY_WAITS_MS:
        values["wait_ms"] = str(RETRY_WAITS_MS[retry])
    for preset, chosen in presets.items():
        for key, change in PRESETS.get(preset, {}).get(chosen, {}).items():
            document[key] = {**document.get(key, {}), **change} if isinstance(change, dict) else change
    for setting in CALL_SETTINGS:
        part: dict[str, Any] = document.get(setting.part, {}) if setting.part else document
        if setting.part:
            values[f"protection.{setting.part}.on"] = "on" if part else "off"
        new = NEW_PARTS.get(setting.part, {}) if setting.part and not part else {}
        present = part.get(setting.name, new.get(setting.name, setting.default))
        values |= setting_values(setting, present)
    return values


def _bulkhead_text(values: Mapping[str, str]) -> str:
    """``50 calls at once per pod; more wait 5 s``; empty while it is off, or a value is wrong."""
    typed = Typed(values)
    bulkhead = {each.name: typed.value(each) for each in CALL_SETTINGS if each.part == "bulkhead"}
    problems = Problems()
    check_patch(problems, {"bulkhead": bulkhead}, CALL)
    if values.get("protection.bulkhead.on") != "on" or typed.errors or problems.errors:
        return ""
    return bulkhead_words(bulkhead, values.get("protection.tier", TIERS[1]))


def groups(values: Mapping[str, str], errors: Mapping[str, Sequence[str]]) -> list[Group]:
    """The form, with what was typed, and the errors at their fields."""

    def control(name: str, label: str, **more: Any) -> Control:
        # An error of three values is displayed at the first.
        all_three = name.removesuffix(f".{TIERS[0]}")
        found = errors.get(name) or errors.get(name.removeprefix("breaker.")) or errors.get(all_three) or ()
        return Control(name=name, label=label, value=values.get(name, ""), errors=found, **more)

    times = [
        control("timeout_ms", CALLS["timeout_ms"], hint=range_words(1, MAX_MS)),
        control("wait_ms", CALLS["wait_ms"], hint=f"0 to {MAX_WAIT_MS:,}"),
        *(
            control(column, CALLS[column], hint=f"0 to {MAX_PART_MS:,}; 0: the timeout bounds a stream, too")
            for column in STREAM_COLUMNS
        ),
        control("fallback_note", CALLS["fallback_note"], hint="at most 500 characters", longest=500),
    ]
    found = [
        Group(title="Calls", help="", controls=times),
        Group(
            title="Breaker",
            help="When it opens, and how it recovers.",
            controls=[
                control(
                    f"breaker.{column}", label, hint=_HINTS.get(column, range_words(*BREAKER_RANGES[column]))
                )
                for column, label in BREAKER.items()
            ],
        ),
    ]
    for part in CALL_PARTS:
        preset = _PRESETS.get(part, "")
        names = tuple(PRESETS.get(preset, ()))
        text = "" if part else "What each pod does on its own."
        if part == "bulkhead":
            text = _bulkhead_text(values)
        about: dict[str, Any] = {"title": CALL_PARTS[part], "help": text}
        found.append(part_group(part, CALL_SETTINGS, control, preset=preset, presets=names, **about))
    return found
