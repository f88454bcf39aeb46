"""The form of pod protection: draws it, and reads what was typed.

The part ``""`` has the settings that belong to no part.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

from controlplane.phrases import count, listed
from controlplane.policies.models import Environment
from controlplane.policies.protection_presets import POD_PRESETS
from controlplane.policies.setting_labels import LABELS, OBSERVED, POD_PARTS
from dashboard.setting_controls import (
    Control,
    Group,
    Typed,
    default_hint,
    part_group,
    setting_values,
)
from fuseboard.contract.protection_fields import MAX_ROUTES, OBSERVED_PARTS, POD_SETTINGS

_HELP = {
    "shedding": "When a pod refuses requests because it is overloaded.",
    "readiness": "When a pod under pressure asks for no new traffic. A gateway must agree.",
    "": "",
}
ROUTES = "protection.routes"
_KEEP = "keep"
#: Seconds for which a part only observes.
_TIMES = (
    ("3600", "For 1 hour"),
    ("14400", "For 4 hours"),
    ("86400", "For 24 hours"),
    ("259200", "For 3 days"),
    ("604800", "For 7 days"),
)
#: Characters of all routes: 200 lines, each with 200 characters, `` = ``, the milliseconds and a line end.
_LONGEST = 45_000
#: Errors of routes that the form displays at once.
_MAX_WRONG_LINES = 3


class PodSettings(TypedDict):
    """The arguments of ``set_pod_protection`` that the form has."""

    protection: Mapping[str, Any]
    observe_for_s: Mapping[str, int]


def typed_settings(data: Mapping[str, str], row: Environment) -> PodSettings:
    """Raises ``InvalidEdit`` with every field that is no number, and the first lines that are no routes."""
    typed = Typed(data)
    settings = [one for one in POD_SETTINGS if one.part != "observe" and one.kind != "routes"]
    protection = typed.parts(settings, [values_of(row, preset) for preset in ("", *POD_PRESETS)])
    protection["routes"] = _routes(typed)
    observe_for_s = {
        part: typed.number(_observe_input(part))
        for part in OBSERVED_PARTS
        if data.get(_observe_input(part), _KEEP) != _KEEP
    }
    typed.settle()
    return PodSettings(protection=protection, observe_for_s=observe_for_s)


def values_of(row: Environment, preset: str = "") -> dict[str, str]:
    """The values of the inputs: those of the row, with those of a preset that the URL names."""
    document: dict[str, Any] = dict(row.protection)
    for name, change in POD_PRESETS.get(preset, {}).items():
        defaults = {each.name: each.default for each in POD_SETTINGS if each.part == name}
        document[name] = defaults | document.get(name, {}) | change
    values = {}
    for setting in POD_SETTINGS:
        part: dict[str, Any] = document.get(setting.part, {}) if setting.part else document
        present = part.get(setting.name, setting.default)
        if setting.kind == "routes":
            values[ROUTES] = "\n".join(f"{route['pattern']} = {route['sla_ms']}" for route in present)
        elif setting.part == "observe":
            values[_observe_input(setting.name.removesuffix("_until_us"))] = _KEEP
        else:
            values |= setting_values(setting, present)
    return values | {
        f"protection.{part}.on": "on" if document.get(part) else "off" for part in POD_PARTS if part
    }


def _observes_until(until_us: int, now: datetime) -> datetime | None:
    """When the part ends observing; ``None`` if it does not observe."""
    at = datetime.fromtimestamp(until_us / 1_000_000, UTC)
    return at if at > now else None


def groups(
    row: Environment, values: Mapping[str, str], errors: Mapping[str, Sequence[str]], now: datetime
) -> list[Group]:
    """The form, with what was typed, and the errors at their fields."""

    defaults = {
        name: value
        for one in POD_SETTINGS
        if one.kind != "routes" and one.part != "observe"
        for name, value in setting_values(one, one.default).items()
    }

    def control(name: str, label: str, hint: str = "", **more: Any) -> Control:
        default = default_hint(label, defaults.get(name, ""), more.get("choices", ()))
        return Control(
            name=name,
            label=label,
            value=values.get(name, ""),
            errors=errors.get(name, ()),
            hint="; ".join(filter(None, (hint, default))),
            **more,
        )

    hint = f"pattern = milliseconds, one per line, at most {MAX_ROUTES}; the first match applies"
    routes = control(ROUTES, LABELS[ROUTES], hint=hint, lines=4, longest=_LONGEST)
    settings = [each for each in POD_SETTINGS if each.kind != "routes"]
    found = []
    in_force = values_of(row)
    present: dict[str, int] = row.protection.get("observe", {})
    ends: dict[str, datetime | None] = {
        part: _observes_until(present.get(f"{part}_until_us", 0), now) for part in OBSERVED
    }
    for part in POD_PARTS:
        about: dict[str, Any] = {
            "title": POD_PARTS[part],
            "help": _HELP[part],
            "summary": f"now: {_summary(part, in_force, observes=ends.get(part) is not None)}",
        }
        if part == "shedding":
            about |= {"preset": "preset", "presets": tuple(POD_PRESETS)}
        found.append(part_group(part, settings, control, others=() if part else [routes], **about))
    return [*found, _trial_mode(control, ends)]


def _trial_mode(control: Callable[..., Control], ends: Mapping[str, datetime | None]) -> Group:
    observing = [label.lower() for part, label in OBSERVED.items() if ends[part] is not None]
    return Group(
        title="Trial mode",
        help="A part decides and counts, but refuses nothing. It ends automatically.",
        summary=f"in it now: {listed(observing, joint=' and') or 'nothing'}",
        controls=[
            control(_observe_input(part), label, choices=_choices(ends[part]))
            for part, label in OBSERVED.items()
        ],
    )


def _summary(part: str, values: Mapping[str, str], *, observes: bool) -> str:
    """The values in force, in words. ``values`` are those of the form, of the stored row."""
    if part and values[f"protection.{part}.on"] != "on":
        return "off"
    match part:
        case "shedding":
            most = values["protection.shedding.queue_max"]
            if observes:
                return f"would shed when more than {most} calls wait, but is in trial mode"
            return f"sheds when more than {most} calls wait"
        case "readiness":
            return f"at most {values['protection.readiness.unready_percent']} % of a service unready"
        case _:
            routes = count(len(values[ROUTES].splitlines()), "route")
            return f"{values['protection.retries_per_s']} retries/s of one process, {routes} with an SLA"


def _choices(at: datetime | None) -> Sequence[tuple[str, str]]:
    if at is None:
        return ((_KEEP, "No, it refuses"), *_TIMES)
    return ((_KEEP, f"Until {at:%-d %b %H:%M} UTC"), ("0", "No, refuse from now"), *_TIMES)


def _observe_input(part: str) -> str:
    return f"observe_for_s.{part}"


def _routes(typed: Typed) -> list[dict[str, Any]]:
    found, wrong = [], []
    for number, line in enumerate(typed.data.get(ROUTES, "").splitlines(), 1):
        pattern, equals, sla_ms = (part.strip() for part in line.rpartition("="))
        if not line.strip():
            continue
        if not (equals and pattern and sla_ms.isascii() and sla_ms.isdigit() and len(sla_ms) < 10):
            wrong.append(f"Line {number}: enter a pattern, =, and milliseconds, such as POST /v1/* = 2000.")
        else:
            found.append({"pattern": pattern, "sla_ms": int(sla_ms)})
    if wrong:
        typed.errors[ROUTES] = wrong[:_MAX_WRONG_LINES]
    return found
