"""The form of one quota, or of another limit: its inputs, in the editor of what it belongs to."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.policies.fields import Fields
from controlplane.policies.limit_fields import WORDS
from dashboard.forms import MOMENT
from dashboard.setting_controls import YES_NO, Control
from dashboard.words.limit_values import form_value
from fuseboard.contract.limit_fields import (
    BY_NAME,
    CALLERS,
    FIELDS,
    QUOTAS,
    Choice,
    Choices,
    Flag,
    LimitField,
    Name,
    Number,
    Patterns,
    allowed_values,
)

#: Columns of a limit that the form shows first. The others are below "More".
FIRST = ("limit", "window_s", "burst", "algorithm", "failure_policy", "shadow")
#: Kind -> whose limits it has, as in ``limit_fields``.
_WHOSE = {"tier": QUOTAS, "tenant": QUOTAS, "environment": CALLERS}


def limit_controls(
    control: Callable[..., Control],
    kind: str,
    name: str,
    columns: Fields,
    choices: Mapping[str, Sequence[tuple[str, str]]],
) -> list[Control]:
    described = [BY_NAME[first] for first in FIRST]
    described += [each for each in FIELDS if each.name not in FIRST]
    found = [
        _limit_control(control, f"{name}.{each.name}", each, columns.get(each.name), choices)
        for each in described
        if each.only in ("", _WHOSE.get(kind))
    ]
    if kind == "tenant":
        hint = "empty: no end"
        ends = control(f"{name}.expires_at", "Ends, UTC", ends_typed(columns), moment=True, hint=hint)
        found.insert(len(FIRST), ends)
    template = [("", "None"), *choices.get("templates", ())]
    found.append(control(f"{name}.template", "Template", columns.get("template", ""), choices=template))
    return found


def ends_typed(columns: Fields) -> str:
    """Return the end of a temporary quota as an input shows it."""
    ends = columns.get("expires_at")
    return f"{datetime.fromisoformat(ends):{MOMENT}}" if ends else ""


def _limit_control(
    control: Callable[..., Control],
    name: str,
    described: LimitField,
    value: Any,
    choices: Mapping[str, Sequence[tuple[str, str]]],
) -> Control:
    words = WORDS[described.name]
    more: dict[str, Any] = {"hint": words.hint}
    match described:
        case Number():
            shown = "" if value is None else form_value(described, value)
            if name == "new.burst":
                shown = ""
            hint = f"empty: {words.usual}" if words.usual else allowed_values(described)
            return control(name, words.label, shown, hint=hint)
        case Flag():
            found = list(words.choices.items()) or list(YES_NO)
            return control(name, words.label, form_value(described, value), choices=found)
        case Choice():
            found = list(words.choices.items())
            if described.default == "":
                found.insert(0, ("", words.usual.capitalize() or "None"))
            return control(name, words.label, str(value or ""), choices=found)
        case Name() if described.name == "dependency":
            every = [("", "Incoming requests"), *choices.get("dependencies", ())]
            return control(name, words.label, value or "", choices=every)
        case Choices():
            return control(
                name, words.label, ", ".join(value or ()), longest=200, hint=allowed_values(described)
            )
        case Patterns():
            return control(
                name,
                words.label,
                "\n".join(value or ()),
                lines=2,
                longest=described.most * (described.longest + 1),
                hint="one per line; empty: all",
            )
        case _:
            return control(name, words.label, str(value or ""), longest=64, **more)
