"""The settings of protection: ranges and defaults from their structs, with a unit and a sentence for people.

Checks, API schemas, forms, and the options of ``fuseboard ctl`` are built from this.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from fuseboard.contract.protection import (
    Bulkhead,
    CallProtection,
    LocalRate,
    PodProtection,
    Readiness,
    Retry,
    Route,
    Shedding,
)
from fuseboard.contract.words import CallTier

#: ``numbers`` and ``words`` have one value for each tier of calls. ``routes`` is a list of ``Route``.
Kind = Literal["number", "flag", "word", "numbers", "words", "routes"]

#: Parts that are off where they are absent.
CALL_PARTS = MappingProxyType({"bulkhead": Bulkhead, "local_rate": LocalRate, "retry": Retry})
POD_PARTS = MappingProxyType({"shedding": Shedding, "readiness": Readiness})
#: Parts that can decide and count without refusing, see ``Observe``.
OBSERVED_PARTS = ("shedding", "bulkhead", "local_rate", "retry")
#: The longest time for which a part only observes.
MAX_OBSERVE_S = 7 * 86_400

TIERS = tuple(CallTier)
MAX_ROUTES = 200

_HELP = {
    "tier": "The tier of calls whose caller names none.",
    "sla_ms": "How long a call should take; 0 for unknown. Calls are shed when their p95 is near it.",
    "timeouts_ms": "The longest call of each tier; 0 is the timeout of the dependency.",
    "bulkhead.max_concurrent": "The most calls of one pod at once.",
    "bulkhead.shares": "How max_concurrent is divided among the tiers; the sum is 100.",
    "bulkhead.queues": "The most calls of each tier that wait for a slot.",
    "bulkhead.queue_timeout_ms": "The longest wait for a slot.",
    "bulkhead.when_full": "What happens to a call of each tier that finds no free slot.",
    "bulkhead.borrow": "A call takes a free slot of a lower tier while no call of that tier waits.",
    "bulkhead.adaptive": "The queues are as long as target_wait_ms allows, not as long as queues says.",
    "bulkhead.target_wait_ms": "The wait that an adaptive queue aims at.",
    "bulkhead.resize_under_pressure": "Lower tiers have fewer slots while the pod lacks CPU or memory.",
    "bulkhead.share_idle": "One tier has all slots while no other tier calls, and for 60 s after that.",
    "local_rate.limit": "The most calls of one pod in each window. It protects the pod, not the vendor.",
    "local_rate.window_ms": "The window of the local rate.",
    "retry.attempts": "All attempts of one call, the first included.",
    "retry.base_ms": "The longest wait before the second attempt; it doubles with each attempt.",
    "retry.cap_ms": "The longest wait before any attempt.",
    "retry.jitter": "How the wait is chosen at random.",
    "retry.budget_percent": "Retries of one pod for each 100 of its first calls in the last 10 s.",
    "retry.floor_milli": "Retries for each 1,000 s that a pod has besides, so that a quiet one can retry.",
    "retry.load_factor_percent": "The most attempts of the whole fleet, in percent of its first calls.",
    "retry.default_retry_after_ms": "The wait after a 429 that names none.",
    "retry.idempotent": "A repeated call does no harm, even if the first one arrived.",
    "shedding.queue_max": "A pod refuses requests while more of its calls than this wait.",
    "shedding.p95_percent": "A pod refuses requests while p95 is above this part of the SLA.",
    "shedding.shed_at": "Above this pressure, a pod refuses tenants of the lowest tiers.",
    "shedding.shed_hard_at": "Above this pressure, a pod refuses all but the highest tier.",
    "readiness.unready_percent": "The largest part of a service that can be unready at once.",
    "readiness.hold_ms": "How long pressure lasts before a pod is unready, and ends before it is ready.",
    "routes": "How long requests of each route should take. The first pattern that matches applies.",
    "retries_per_s": "The most retries of one process, to all dependencies together.",
    **{
        f"observe.{part}_until_us": f"Until this time, {part} decides and counts, but refuses nothing."
        for part in OBSERVED_PARTS
    },
}
_UNITS = {"ms": "milliseconds", "percent": "percent", "us": "microseconds since 1970", "s": "per second"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting. ``part`` is empty for a setting of the protection itself."""

    part: str
    name: str
    kind: Kind
    default: Any
    help: str
    unit: str = ""
    least: int = 0
    most: int = 0
    words: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.part}.{self.name}" if self.part else self.name


def expected(setting: Setting) -> str:
    """The values to enter, as the end of an error or a help text."""
    unit = f" {setting.unit}" if setting.unit else ""
    number = f"from {setting.least:,} to {setting.most:,}{unit}"
    words = ", ".join(setting.words)
    match setting.kind:
        case "number":
            return f"a whole number {number}"
        case "flag":
            return "true or false"
        case "word":
            return f"one of: {words}"
        case "numbers":
            return f"three whole numbers {number}, for {', '.join(TIERS)}"
        case "words":
            return f"three words, for {', '.join(TIERS)}, each one of: {words}"
        case "routes":
            return (
                f"at most {MAX_ROUTES} routes, each with a pattern of 1 to 200 characters and sla_ms from"
                " 1 to 600,000 milliseconds"
            )


def fits(setting: Setting, value: Any) -> bool:
    """Whether a value as JSON has it is allowed, on its own."""
    match setting.kind:
        case "number":
            return _is_number(setting, value)
        case "flag":
            return isinstance(value, bool)
        case "word":
            return value in setting.words
        case "numbers":
            return _is_triple(value) and all(_is_number(setting, each) for each in value)
        case "words":
            return _is_triple(value) and all(each in setting.words for each in value)
        case "routes":
            return isinstance(value, list | tuple) and _are_routes(value)


def _is_number(setting: Setting, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and setting.least <= value <= setting.most


def _is_triple(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == len(TIERS)


def _are_routes(value: Any) -> bool:
    if len(value) > MAX_ROUTES or any(
        not isinstance(each, dict) or each.keys() != {"pattern", "sla_ms"} for each in value
    ):
        return False
    try:
        msgspec.convert(value, tuple[Route, ...])
    except msgspec.ValidationError:
        return False
    return True


def _settings_of(struct: type[Struct], part: str = "") -> tuple[Setting, ...]:
    found: list[Setting] = []
    for field in msgspec.structs.fields(struct):
        of = types.type_info(field.type)
        if isinstance(of, types.UnionType | types.StructType):
            structs = [each for each in getattr(of, "types", (of,)) if isinstance(each, types.StructType)]
            found += _settings_of(structs[0].cls, field.name)
        else:
            default = field.default if field.default is not msgspec.NODEFAULT else ()
            found.append(_setting(part, field.name, of, default))
    return tuple(found)


def _setting(part: str, name: str, of: types.Type, default: Any) -> Setting:
    kind: Kind = "number"
    one = of.item_types[0] if isinstance(of, types.TupleType) else of
    least = most = 0
    words: tuple[str, ...] = ()
    if isinstance(one, types.VarTupleType):
        kind = "routes"
    elif isinstance(one, types.BoolType):
        kind = "flag"
    elif isinstance(one, types.EnumType):
        kind, words = "words" if one is not of else "word", tuple(one.cls)
    elif isinstance(one, types.IntType):
        kind, least, most = "numbers" if one is not of else "number", one.ge or 0, one.le or 0
    else:
        raise TypeError(f"{part}.{name}: describe how people enter a {one}")
    path = f"{part}.{name}" if part else name
    unit = _UNITS.get(name.rpartition("_")[2], "")
    if path in ("shedding.shed_at", "shedding.shed_hard_at", "bulkhead.shares"):
        unit = "percent"
    return Setting(
        part=part,
        name=name,
        kind=kind,
        default=msgspec.to_builtins(default),
        help=_HELP[path],
        unit=unit,
        least=least,
        most=most,
        words=words,
    )


CALL_SETTINGS = _settings_of(CallProtection)
POD_SETTINGS = _settings_of(PodProtection)
