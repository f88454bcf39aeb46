"""Named values of protection, which an admin selects. Pods get the expanded values.

A dependency that the API or a file makes without a protection has none. The form of a new one suggests the
presets of its kind.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from controlplane.policies.models import Kind
from controlplane.policies.protection import NEW_PARTS
from controlplane.policies.sizing import bulkhead_words
from controlplane.validation import Problems
from fuseboard.contract.retry_presets import RETRY_PRESETS
from fuseboard.contract.words import CallTier

#: The size of a pod -> its slots, and the calls of the critical and of the standard tier that wait for one.
_SLOTS = {"small": (20, 12), "medium": (50, 30), "large": (100, 60)}
_BULKHEADS = {
    name: {**NEW_PARTS["bulkhead"], "max_concurrent": slots, "queues": [places, places, 6]}
    for name, (slots, places) in _SLOTS.items()
}
#: Kind of dependency -> how long a call should take, in milliseconds.
_SLAS = {"llm": 30_000, "api": 2_000, "database": 200}

#: Preset -> its names -> the change of the protection.
PRESETS: Mapping[str, Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "bulkhead": {name: {"bulkhead": values} for name, values in _BULKHEADS.items()},
        "sla": {name: {"sla_ms": value} for name, value in _SLAS.items()},
        "retry": {name: {"retry": dict(values)} for name, values in RETRY_PRESETS.items()},
    }
)
#: Preset of what protects every pod -> its change. ``queue_max`` is less than the places of a bulkhead: that
#: knows no tiers of tenants, so a pod must shed before its queue is full.
POD_PRESETS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {"overload": {"shedding": {"queue_max": 20}, "readiness": {}}}
)
#: Kind of a dependency -> the presets that its form suggests.
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
#: Preset of retries -> how long its calls wait for a limit of the vendor. A user does not wait.
RETRY_WAITS_MS: Mapping[str, int] = MappingProxyType(
    {"user-facing": 0, "background": 3_000, "llm": 3_000, "rate-limited": 3_000}
)
#: The size that a new dependency gets in a form, if the admin chooses none.
SIZE = "medium"


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


def preset_of_kind(kind: str, *, timeout_ms: int, size: str = SIZE) -> dict[str, Any]:
    """Return the protection that a form suggests for a dependency of this kind.

    A call waits for a slot for less time than it may last.
    """
    found = preset_change(Problems(), {**KIND_PRESETS.get(kind, {}), "bulkhead": size})
    found["bulkhead"] = {**found["bulkhead"], "queue_timeout_ms": queue_timeout_ms(timeout_ms)}
    return found


def queue_timeout_ms(timeout_ms: int) -> int:
    return min(_QUEUE_TIMEOUT_MS, timeout_ms // 2)


def size_words(size: str, *, timeout_ms: int) -> str:
    """``50 calls at once per pod; more wait 5 s``."""
    bulkhead = {**_BULKHEADS[size], "queue_timeout_ms": queue_timeout_ms(timeout_ms)}
    return bulkhead_words(bulkhead, CallTier.STANDARD)


def wait_of_kind(kind: str) -> int:
    """Return how long a call of a new dependency waits for a limit of the vendor, in milliseconds."""
    return RETRY_WAITS_MS[KIND_PRESETS[kind]["retry"]] if kind in KIND_PRESETS else 0


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
