"""Named values of protection, which an admin selects. Pods get the expanded values."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from controlplane.policies.models import Kind
from controlplane.validation import Problems
from fuseboard.contract.retry_presets import RETRY_PRESETS

#: The size of a pod -> its bulkhead.
_BULKHEADS = {
    "small": {"max_concurrent": 20},
    "medium": {"max_concurrent": 50},
    "large": {"max_concurrent": 100},
}
#: What is called -> how long a call should take, in milliseconds.
_SLAS = {"llm": 30_000, "api": 2_000, "database": 200}

#: Preset -> its names -> the change of the protection.
PRESETS: Mapping[str, Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "bulkhead": {name: {"bulkhead": values} for name, values in _BULKHEADS.items()},
        "sla": {name: {"sla_ms": value} for name, value in _SLAS.items()},
        "retry": {name: {"retry": dict(values)} for name, values in RETRY_PRESETS.items()},
    }
)
#: Kind of a new dependency -> its presets.
KIND_PRESETS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        Kind.LLM.value: {"bulkhead": "medium", "sla": "llm", "retry": "llm"},
        Kind.EXTERNAL.value: {"bulkhead": "medium", "sla": "api", "retry": "user-facing"},
        Kind.DATABASE.value: {"bulkhead": "medium", "sla": "database", "retry": "user-facing"},
        Kind.INTERNAL.value: {"bulkhead": "medium", "sla": "api", "retry": "user-facing"},
    }
)
#: The longest wait for a slot in the documents' figures.
_QUEUE_TIMEOUT_MS = 5_000


def preset_change(problems: Problems, presets: object) -> dict[str, Any]:
    """Return the change that these presets make; a problem for each unknown one."""
    if not isinstance(presets, Mapping):
        problems.add("preset", f"Enter the name of a preset for each of: {', '.join(PRESETS)}.")
        return {}
    found: dict[str, Any] = {}
    for part, name in presets.items():
        named = PRESETS.get(part)
        if named is None:
            problems.add(f"preset.{part}", f"There are presets only of: {', '.join(PRESETS)}.")
        elif name not in named:
            problems.add(f"preset.{part}", f"Choose one of: {', '.join(named)}.")
        else:
            found |= named[name]
    return found


def preset_of_kind(kind: str, *, timeout_ms: int) -> dict[str, Any]:
    """Return the change that a new dependency of this kind gets. A call waits less than it may last."""
    found = preset_change(Problems(), KIND_PRESETS.get(kind, {}))
    if "bulkhead" in found:
        wait_ms = min(_QUEUE_TIMEOUT_MS, timeout_ms // 2)
        found["bulkhead"] = {**found["bulkhead"], "queue_timeout_ms": wait_ms}
    return found


def merged_changes(first: Mapping[str, Any], second: object) -> Any:
    """Return the first change with the values of the second one over it."""
    if not isinstance(second, Mapping):
        return second
    found = dict(first)
    for name, value in second.items():
        below = found.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = {**below, **value}
        found[name] = value
    return found
