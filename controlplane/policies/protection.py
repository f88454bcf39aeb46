"""The protection of a dependency's callers and of pods: as documents, as flat fields, and changed.

A stored document has every value of each part, so that a later default changes no existing row. A part
that is off is absent, and an empty document is no protection.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from controlplane.validation import Problems
from fuseboard.contract.protection import (
    CallProtection,
    PodProtection,
    ProtectionError,
    check_call_protection,
    check_pod_protection,
)
from fuseboard.contract.protection_fields import (
    CALL_PARTS,
    CALL_SETTINGS,
    MAX_OBSERVE_S,
    POD_PARTS,
    POD_SETTINGS,
    Setting,
    expected,
    fits,
)

Document = dict[str, Any]
PROTECTION = "protection"

#: Part -> what a new one gets beside the defaults of its struct, which older rows and pods keep.
NEW_PARTS: Mapping[str, Document] = {
    "bulkhead": {"queues": [30, 30, 6], "when_full": ["queue", "queue", "discard"], "share_idle": True},
}

_OBSERVE = "observe"
_RETRY = "retry"
#: Absent while no tier has a timeout of its own.
_TIMEOUTS = "timeouts_ms"
#: A form or a file takes a moment to arrive.
_LATE_US = 60_000_000


@dataclass(frozen=True)
class Shape:
    """The parts and settings of a protection."""

    struct: type[Struct]
    settings: tuple[Setting, ...]
    #: Parts that can be off.
    parts: tuple[str, ...]
    check: Callable[[str, Any], None]

    @property
    def by_path(self) -> dict[str, Setting]:
        return {setting.path: setting for setting in self.settings}

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(setting.part for setting in self.settings if setting.part))

    def names_in(self, group: str) -> tuple[str, ...]:
        return tuple(setting.name for setting in self.settings if setting.part == group)


CALL = Shape(CallProtection, CALL_SETTINGS, tuple(CALL_PARTS), check_call_protection)
POD = Shape(PodProtection, POD_SETTINGS, tuple(POD_PARTS), check_pod_protection)


def call_protection(document: Mapping[str, Any]) -> CallProtection | None:
    return msgspec.convert(document, CallProtection) if document else None


def pod_protection(document: Mapping[str, Any]) -> PodProtection | None:
    return msgspec.convert(document, PodProtection) if document else None


def completed(document: Mapping[str, Any], shape: Shape) -> Document:
    """The document with every setting: one that a later version added is not in older rows."""
    found = _defaults(shape, "") | dict(document)
    for group in shape.groups:
        if group in document:
            found[group] = _defaults(shape, group) | dict(document[group])
    return found


def flat_protection(document: Mapping[str, Any]) -> dict[str, Any]:
    """``{"bulkhead": {"borrow": true}}`` to ``{"protection.bulkhead.borrow": True}``.

    A part without values has no flat field. ``changed`` stores none: a new part begins with all of its
    values, and a part to observe without a time is left out.
    """
    found: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= {f"{PROTECTION}.{name}.{inner}": each for inner, each in value.items()}
        else:
            found[f"{PROTECTION}.{name}"] = value
    return found


def protection_in(fields: Mapping[str, Any]) -> Document:
    """The document among flat fields. This reverses ``flat_protection``."""
    found: Document = {}
    for field, value in fields.items():
        first, _, path = field.partition(".")
        if first != PROTECTION or not path:
            continue
        group, _, name = path.rpartition(".")
        (found.setdefault(group, {}) if group else found)[name] = value
    return found


def without_protection(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if field.partition(".")[0] != PROTECTION}


def is_off(value: object) -> bool:
    """Whether this turns a part off: null in JSON, the word in a file. 0 is a mistake."""
    return value is None or value is False or value == "off"


def check_patch(problems: Problems, patch: object, shape: Shape) -> None:
    """Check each value on its own. The fields of problems are like ``protection.bulkhead.borrow``."""
    if is_off(patch):
        return
    if not isinstance(patch, Mapping):
        problems.add(PROTECTION, "Enter its settings with their names, or off.")
        return
    known = shape.by_path
    for name, value in patch.items():
        if name in shape.groups:
            _check_group(problems, shape, name, value)
        elif name in known:
            _check_value(problems, known[name], value)
        else:
            alone = tuple(setting.name for setting in shape.settings if not setting.part)
            problems.add(
                f"{PROTECTION}.{name}", f"There is no such setting, only {', '.join(shape.groups + alone)}."
            )


def changed(
    problems: Problems,
    now: Mapping[str, Any],
    patch: object,
    shape: Shape,
    *,
    now_us: int = 0,
    had: Mapping[str, Any] | None = None,
) -> Document:
    """Return the document after a change: values that the patch leaves out stay, or are the defaults.

    With ``now_us``, a time until which a part only observes must not be further away than allowed. ``had``
    is the document before, if it is not ``now``: a part that it lacks is new, and begins with ``NEW_PARTS``.
    """
    before = len(problems.errors)
    check_patch(problems, patch, shape)
    if len(problems.errors) > before:
        return dict(now)
    if not isinstance(patch, Mapping):
        return {}
    result = _defaults(shape, "")
    result |= {name: value for name, value in now.items() if name not in shape.groups}
    result |= {name: _plain(value) for name, value in patch.items() if name not in shape.groups}
    # The default is that of the rows from before it was added.
    if result.get(_TIMEOUTS) == _defaults(shape, "").get(_TIMEOUTS):
        result.pop(_TIMEOUTS, None)
    for group in shape.groups:
        given = patch.get(group, {})
        if is_off(given) or (group not in patch and group not in now):
            continue
        begins, stored = _defaults(shape, group), (now if had is None else had).get(group)
        values = dict(now.get(group, {})) | {name: _plain(given[name]) for name in given}
        if stored is None:
            result[group] = begins | NEW_PARTS.get(group, {}) | values
        else:
            # A setting that a later version added is absent from an older row until it is used.
            result[group] = {
                name: value
                for name, value in (begins | values).items()
                if name in stored or value != begins[name]
            }
    _check_budget(problems, now.get(_RETRY, {}), result.get(_RETRY, {}))
    if now_us:
        _check_observe(problems, now.get(_OBSERVE, {}), result.get(_OBSERVE, {}), now_us)
    return _settled(problems, result, shape)


def _settled(problems: Problems, result: Document, shape: Shape) -> Document:
    struct = msgspec.convert(result, shape.struct)
    if struct == shape.struct():
        return {}
    try:
        shape.check(PROTECTION, struct)
    except ProtectionError as error:
        field, _, message = str(error).partition(": ")
        problems.add(field, f"{message[:1].upper()}{message[1:]}.")
    if _OBSERVE in result:
        observed = {name: value for name, value in result[_OBSERVE].items() if value}
        result = {name: value for name, value in result.items() if name != _OBSERVE}
        if observed:
            result[_OBSERVE] = observed
    if not result.get("routes", True):
        del result["routes"]
    return result


def _check_group(problems: Problems, shape: Shape, group: str, value: Any) -> None:
    if is_off(value):
        return
    if not isinstance(value, Mapping):
        problems.add(f"{PROTECTION}.{group}", "Enter its settings with their names, or off.")
        return
    known = shape.by_path
    for name, each in value.items():
        setting = known.get(f"{group}.{name}")
        if setting is None:
            text = f"There is no such setting, only {', '.join(shape.names_in(group))}."
            problems.add(f"{PROTECTION}.{group}.{name}", text)
        else:
            _check_value(problems, setting, each)


def _check_value(problems: Problems, setting: Setting, value: Any) -> None:
    if not fits(setting, _plain(value)):
        problems.add(f"{PROTECTION}.{setting.path}", f"Enter {expected(setting)}.")
    elif setting.kind == "routes" and not all(_is_plain(route["pattern"]) for route in _plain(value)):
        text = "Enter patterns without control characters, and without blanks at the ends."
        problems.add(f"{PROTECTION}.{setting.path}", text)


def _check_budget(problems: Problems, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    """The budget is a part of each pod's calls, so it must be within what the fleet may make."""
    numbers = ("budget_percent", "load_factor_percent")
    if not after or [before.get(name) for name in numbers] == [after[name] for name in numbers]:
        return
    most = after["load_factor_percent"] - 100
    if after["budget_percent"] > most:
        text = f"Enter at most {most}, or a load_factor_percent of {after['budget_percent'] + 100} or more."
        problems.add(f"{PROTECTION}.{_RETRY}.budget_percent", text)


def _check_observe(
    problems: Problems, before: Mapping[str, int], after: Mapping[str, int], now_us: int
) -> None:
    latest = now_us + MAX_OBSERVE_S * 1_000_000 + _LATE_US
    for name, until in after.items():
        if until > latest and until != before.get(name):
            text = "Choose a time at most 7 days from now: a part that observes protects nothing."
            problems.add(f"{PROTECTION}.{_OBSERVE}.{name}", text)


def _defaults(shape: Shape, group: str) -> Document:
    return {setting.name: _plain(setting.default) for setting in shape.settings if setting.part == group}


def _plain(value: Any) -> Any:
    """Routes can be a mapping: a file lists them as ``"POST /v1/*": 2000``."""
    if isinstance(value, Mapping):
        return [{"pattern": pattern, "sla_ms": sla} for pattern, sla in value.items()]
    return list(value) if isinstance(value, tuple) else value


def _is_plain(pattern: str) -> bool:
    """Whether a form can display this pattern in one line, and Postgres can store it."""
    return pattern.isprintable() and pattern == pattern.strip()


def differing(protection: Mapping[str, Any], differ: set[str]) -> dict[str, Any]:
    """Return the parts and values of a change whose flat fields differ. ``None`` turns a part off."""
    found: dict[str, Any] = {}
    for name, value in protection.items():
        path = f"{PROTECTION}.{name}"
        if isinstance(value, Mapping):
            values = {key: each for key, each in value.items() if f"{path}.{key}" in differ}
            if values:
                found[name] = values
        elif path in differ or (value is None and any(field.startswith(f"{path}.") for field in differ)):
            found[name] = value
    return found
