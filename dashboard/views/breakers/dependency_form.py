"""The form of a dependency's settings: what it displays, and what was typed as the edit takes it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controlplane.editing.edits.dependency_settings import DependencySettings
from controlplane.phrases import range_words
from controlplane.policies.models import (
    BREAKER_RANGES,
    MAX_MS,
    OPTIONAL_COLUMNS,
    STREAM_COLUMNS,
    TIME_PRESETS,
    Change,
    Dependency,
    Kind,
    breaker_preset,
)
from controlplane.policies.protection import NEW_PARTS
from controlplane.policies.protection_presets import (
    PRESETS,
    RETRY_WAITS_MS,
    preset_of_kind,
    wait_of_kind,
)
from controlplane.policies.setting_labels import BREAKER, CALL_PARTS, CALLS
from dashboard.forms import sent_number
from dashboard.setting_controls import (
    Control,
    Group,
    Typed,
    default_hint,
    part_group,
    setting_controls,
    setting_values,
)
from dashboard.views.breakers.setting_summaries import summary_of
from fuseboard.contract.policy import MAX_WAIT_MS
from fuseboard.contract.protection_fields import CALL_SETTINGS, TIERS

#: The timeout that the form of a new dependency starts with.
NEW_TIMEOUT_MS = 10_000
#: A language model answers for longer: the timeout is not below the SLA that the form suggests.
_NEW_TIMEOUTS_MS = {Kind.LLM.value: 60_000}
_HINTS = {"consecutive_failures": "0: not used", "window_calls": "0: all in the window"}
#: Columns of the breaker and settings of the protection that most people never change.
_SELDOM = frozenset(
    (
        "bulkhead.adaptive",
        "bulkhead.borrow",
        "bulkhead.resize_under_pressure",
        "bulkhead.share_idle",
        "bulkhead.target_wait_ms",
        "retry.default_retry_after_ms",
        "retry.floor_milli",
        "retry.jitter",
        "retry.load_factor_percent",
        "open_max_ms",
        "probes",
        "probe_lease_ms",
        "successes_to_close",
        "slow_start_ms",
        "minimum_servers",
        "window_calls",
    )
)
#: Column -> the numbers that are allowed.
_TIMES = {
    "timeout_ms": (1, MAX_MS),
    "wait_ms": (0, MAX_WAIT_MS),
    **{column: (0, most) for column, most in OPTIONAL_COLUMNS.items()},
}
#: Part -> the presets that fill in its fields.
_PRESETS = {"": "sla", "bulkhead": "bulkhead", "retry": "retry"}
#: A setting of the protection itself that the form shows among the times.
_TIMEOUTS = "timeouts_ms"


def suggests(row: Dependency) -> bool:
    """Whether the form suggests a protection: the API or a file made the dependency without one."""
    if row.protection or row.pk is None:
        return False
    changes = Change.objects.filter(
        kind="dependency", name=row.name, revision__environment=row.environment_id
    )
    # A file numbers versions by revisions, so the version does not say whether people edited it.
    newest = changes.order_by("-revision").first()
    return newest is not None and newest.before is None


def new_timeout_ms(kind: str) -> int:
    return _NEW_TIMEOUTS_MS.get(kind, NEW_TIMEOUT_MS)


def new_row(kind: str, *, timeout_ms: int | None = None) -> Dependency:
    """A dependency that is not stored, with the presets of its kind."""
    timeout_ms = new_timeout_ms(kind) if timeout_ms is None else timeout_ms
    return Dependency(
        kind=kind,
        timeout_ms=timeout_ms,
        wait_ms=wait_of_kind(kind),
        protection=preset_of_kind(kind, timeout_ms=timeout_ms),
        **TIME_PRESETS.get(kind, {}),
        **breaker_preset(kind),
    )


def row_of_kind(data: Mapping[str, str], kind: str) -> Dependency:
    """Return what a form with nothing typed but the kind and the timeout would add."""
    drawn_ms = new_timeout_ms(data.get("drawn_for", "") or kind)
    typed_ms = sent_number(data.get("timeout_ms", "").strip(), drawn_ms)
    # A timeout that stayed as an earlier kind filled it in becomes that of this kind.
    return new_row(kind, timeout_ms=None if typed_ms == drawn_ms else typed_ms)


def of_kind(data: Mapping[str, str], kind: str) -> dict[str, str]:
    """The typed values; one that stayed as an earlier kind filled it in becomes that of this kind.

    So a form without scripts, in which the kind was chosen last, saves the presets of that kind.
    """
    drawn = values_of(new_row(data.get("drawn_for", "") or kind), {})
    filled = values_of(row_of_kind(data, kind), {})
    typed = {name: data[name] for name in filled if name in data and data[name] != drawn[name]}
    return filled | typed


def typed_settings(data: Mapping[str, str], row: Dependency) -> DependencySettings:
    """Raises ``InvalidEdit`` with every wrong field. ``row`` is what the form was drawn from."""
    typed = Typed(data)
    chosen = ({preset: name} for preset, names in PRESETS.items() for name in names)
    shown = [values_of(row, presets) for presets in ({}, *chosen)]
    settings = DependencySettings(
        breaker={column: typed.number(f"breaker.{column}", BREAKER_RANGES[column]) for column in BREAKER},
        timeout_ms=typed.number("timeout_ms", _TIMES["timeout_ms"]),
        wait_ms=typed.number("wait_ms", _TIMES["wait_ms"]),
        **{
            column: typed.number(column, _TIMES[column]) if column in data else 0
            for column in OPTIONAL_COLUMNS
        },
        fallback_note=data.get("fallback_note", "").strip(),
        protection=typed.parts(CALL_SETTINGS, shown),
    )
    typed.settle()
    return settings


def values_of(row: Dependency, presets: Mapping[str, str], *, suggest: bool = True) -> dict[str, str]:
    """The values in the inputs: the row, with the values of presets that the address names.

    A dependency that was never edited and has no protection shows the presets of its kind, switched on.
    """
    suggested = suggest and not any(presets.values()) and suggests(row)
    values = {f"breaker.{column}": str(getattr(row, column)) for column in BREAKER}
    columns = ("timeout_ms", "wait_ms", *OPTIONAL_COLUMNS, "fallback_note")
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


def groups(
    values: Mapping[str, str], errors: Mapping[str, Sequence[str]], row: Dependency, *, new: bool = False
) -> list[Group]:
    """The form, with what was typed, and the errors at their fields. ``row`` is what is in force."""
    defaults = values_of(new_row(row.kind), {})
    in_force = values if new else values_of(row, {}, suggest=False)

    def control(name: str, label: str, hint: str = "", **more: Any) -> Control:
        default = default_hint(label, defaults.get(name, ""), more.get("choices", ()))
        if name.endswith(".on"):
            default = ""
        return Control(
            name=name,
            label=label,
            value=values.get(name, ""),
            errors=errors.get(name) or errors.get(name.removeprefix("breaker.")) or _of_three(name, errors),
            hint="; ".join(filter(None, (hint, default))),
            **more,
        )

    def about(part: str) -> dict[str, Any]:
        return {"summary": ("" if new else "now: ") + summary_of(part, in_force)}

    found = list(_calls(control, about))
    for part in CALL_PARTS:
        preset = _PRESETS.get(part, "")
        names = () if new else tuple(PRESETS.get(preset, ()))
        settings = [one for one in CALL_SETTINGS if one.path != _TIMEOUTS]
        options = {"title": CALL_PARTS[part], "help": "", "preset": preset, "presets": names, **about(part)}
        found.append(part_group(part, settings, control, seldom=_SELDOM, **options))
    return found


def _calls(control: Any, about: Any) -> Iterator[Group]:
    """The groups that every dependency has: breaker, timeout and fallback."""
    columns = {
        column: control(f"breaker.{column}", label, _HINTS.get(column, range_words(*BREAKER_RANGES[column])))
        for column, label in BREAKER.items()
    }
    yield Group(
        title="Breaker",
        help="When it opens, and how it recovers.",
        controls=[one for column, one in columns.items() if column not in _SELDOM],
        more=[one for column, one in columns.items() if column in _SELDOM],
        **about("breaker"),
    )
    at_zero = dict.fromkeys(STREAM_COLUMNS, "; 0: the timeout bounds a stream, too")
    at_zero["store_wait_ms"] = "; 0: as long as all calls of the fleet"
    at_zero["latency_rise_percent"] = "; over their lowest time; 0: never. For pools of own machines"
    times = {
        column: control(column, CALLS[column], range_words(*bounds) + at_zero.get(column, ""))
        for column, bounds in _TIMES.items()
    }
    [by_tier] = (one for one in CALL_SETTINGS if one.path == _TIMEOUTS)
    yield Group(
        title="Timeout",
        help="",
        controls=[times.pop("timeout_ms"), times.pop("wait_ms")],
        more=[*times.values(), *setting_controls(by_tier, control)],
        **about("timeout"),
    )
    note = control("fallback_note", CALLS["fallback_note"], "at most 500 characters", longest=500)
    yield Group(title="Fallback", help="", controls=[note], **about("fallback"))


def _of_three(name: str, errors: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """An error of three values together is displayed at the first."""
    return errors.get(name.removesuffix(f".{TIERS[0]}"), ())
