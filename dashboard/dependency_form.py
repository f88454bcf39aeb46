"""The form of a dependency's settings: what it displays, and what was typed as the edit takes it."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.editing.edits.dependency_settings import DependencySettings
from controlplane.policies.models import BREAKER_RANGES, MAX_MS, Dependency
from controlplane.policies.protection_presets import PRESETS
from dashboard.setting_controls import (
    ON_OFF,
    Control,
    Group,
    Typed,
    range_words,
    setting_controls,
    setting_values,
)
from fuseboard.contract.policy import MAX_WAIT_MS
from fuseboard.contract.protection_fields import CALL_PARTS, CALL_SETTINGS, TIERS

#: Column of the breaker -> its label.
_BREAKER = {
    "consecutive_failures": "Opens after failures in a row",
    "failure_percent": "Opens at failed calls, %",
    "slow_percent": "Opens at slow calls, %",
    "slow_ms": "Slow after, ms",
    "minimum_calls": "Calls before a percentage counts",
    "window_s": "Window, s",
    "window_calls": "Only the newest calls",
    "open_ms": "Open time, ms",
    "open_max_ms": "Longest open time, ms",
    "probes": "Probes at once",
    "probe_lease_ms": "A probe is lost after, ms",
    "successes_to_close": "Successes that close it",
    "slow_start_ms": "Traffic grows for, ms",
    "minimum_servers": "Pods that see failures",
}
_HINTS = {"consecutive_failures": "0: not used", "window_calls": "0: all in the window"}
#: Setting of the protection -> its label, if its name does not say enough.
_LABELS = {
    "sla_ms": "SLA, ms",
    "tier": "Tier of calls that name none",
    "bulkhead.max_concurrent": "Calls at once",
    "bulkhead.shares": "Share",
    "bulkhead.queues": "Places in the queue",
    "bulkhead.when_full": "Without a free slot",
    "retry.attempts": "Attempts",
    "retry.base_ms": "First wait, ms",
    "retry.cap_ms": "Longest wait, ms",
    "retry.default_retry_after_ms": "Wait after a 429 without a time, ms",
    "retry.floor_milli": "Retries per 1,000 s besides",
}
_TITLES = {
    "": "Protection of pods",
    "bulkhead": "Bulkhead",
    "local_rate": "Local rate",
    "retry": "Retries",
}
#: Part -> the presets that fill in its fields.
_PRESETS = {"": "sla", "bulkhead": "bulkhead", "retry": "retry"}


def typed_settings(data: Mapping[str, str]) -> DependencySettings:
    """Raises ``InvalidEdit`` with every field that is no number."""
    typed = Typed(data)
    protection: dict[str, Any] = {}
    for setting in CALL_SETTINGS:
        if setting.part and data.get(f"protection.{setting.part}.on") != "on":
            protection[setting.part] = None
            continue
        found = typed.value(setting, f"protection.{setting.path}")
        (protection.setdefault(setting.part, {}) if setting.part else protection)[setting.name] = found
    settings = DependencySettings(
        breaker={column: typed.number(f"breaker.{column}") for column in _BREAKER},
        timeout_ms=typed.number("timeout_ms"),
        wait_ms=typed.number("wait_ms"),
        fallback_note=data.get("fallback_note", "").strip(),
        protection=protection,
    )
    typed.settle()
    return settings


def values_of(row: Dependency, presets: Mapping[str, str]) -> dict[str, str]:
    """What the inputs display: the row, with the values of presets that the address names."""
    values = {f"breaker.{column}": str(getattr(row, column)) for column in _BREAKER}
    values |= {name: str(getattr(row, name)) for name in ("timeout_ms", "wait_ms", "fallback_note")}
    document: dict[str, Any] = dict(row.protection)
    for preset, chosen in presets.items():
        for key, change in PRESETS.get(preset, {}).get(chosen, {}).items():
            document[key] = {**document.get(key, {}), **change} if isinstance(change, dict) else change
    for setting in CALL_SETTINGS:
        part: dict[str, Any] = document.get(setting.part, {}) if setting.part else document
        if setting.part:
            values[f"protection.{setting.part}.on"] = "on" if part else "off"
        present = part.get(setting.name, setting.default)
        values |= setting_values(setting, present)
    return values


def groups(values: Mapping[str, str], errors: Mapping[str, Sequence[str]]) -> list[Group]:
    """The form, with what was typed, and the errors at their fields."""

    def control(name: str, label: str, **more: Any) -> Control:
        # An error of three values is displayed at the first.
        all_three = name.removesuffix(f".{TIERS[0]}")
        found = errors.get(name) or errors.get(name.removeprefix("breaker.")) or errors.get(all_three) or ()
        return Control(name=name, label=label, value=values.get(name, ""), errors=found, **more)

    times = [
        control("timeout_ms", "Timeout of a call, ms", hint=range_words(1, MAX_MS)),
        control("wait_ms", "Callers wait for a refusal that ends, ms", hint=f"0 to {MAX_WAIT_MS:,}"),
        control(
            "fallback_note", "What callers do while it is open", hint="at most 500 characters", longest=500
        ),
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
                for column, label in _BREAKER.items()
            ],
        ),
    ]
    for part in ("", *CALL_PARTS):
        controls = [
            one
            for each in CALL_SETTINGS
            if each.part == part
            for one in setting_controls(each, control, label=_LABELS.get(each.path, ""))
        ]
        switch = control(f"protection.{part}.on", "Use it", choices=ON_OFF) if part else None
        preset = _PRESETS.get(part, "")
        names = tuple(PRESETS.get(preset, ()))
        text = "" if part else "What each pod does on its own."
        found.append(
            Group(
                title=_TITLES[part], help=text, controls=controls, switch=switch, preset=preset, presets=names
            )
        )
    return found
