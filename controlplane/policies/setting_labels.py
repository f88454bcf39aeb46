"""The name and the unit of each setting, as forms, differences and advice show them.

A label is ``Open time, ms``: what follows the comma is the unit of its values. The labels of the fields of
a limit are in ``controlplane.policies.limit_fields``.
"""

from collections.abc import Mapping

from fuseboard.contract.protection_fields import CALL_SETTINGS, POD_SETTINGS, Setting

#: Column of the breaker -> its label.
BREAKER: Mapping[str, str] = {
    "consecutive_failures": "Opens after failures in a row",
    "failure_percent": "Opens at failed calls, %",
    "slow_percent": "Opens at slow calls, %",
    "slow_ms": "Slow after, ms",
    "minimum_calls": "Least calls before a percentage can open it",
    "window_s": "Window, s",
    "window_calls": "Newest calls that count (0: all)",
    "open_ms": "Open time, ms",
    "open_max_ms": "Longest open time, ms",
    "probes": "Probes at once",
    "probe_lease_ms": "Give up on a probe after, ms",
    "successes_to_close": "Successes that close it",
    "slow_start_ms": "Ramp up after closing over, ms",
    "minimum_servers": "Pods that must see failures before it opens",
}
#: Column of a dependency or a tier, where several forms show it.
CALLS: Mapping[str, str] = {
    "timeout_ms": "Timeout of a call, ms",
    "wait_ms": "Wait this long for room in a limit before refusing, ms",
    "first_part_ms": "First part of a stream within, ms",
    "between_parts_ms": "Next part of a stream within, ms",
    "store_wait_ms": "Wait this long for Redis before deciding alone, ms",
    "latency_rise_percent": "Lower limits of calls at once when calls take longer by, percent",
    "fallback_note": "What callers do while it is open",
}
#: Part of a protection -> its name. The empty part has the settings of the protection itself.
CALL_PARTS: Mapping[str, str] = {
    "": "Priority and SLA",
    "bulkhead": "Bulkhead",
    "local_rate": "Local rate",
    "retry": "Retries",
}
POD_PARTS: Mapping[str, str] = {
    "shedding": "Shedding",
    "readiness": "Readiness",
    "": "Requests and retries",
}
#: Part that can only observe -> its name.
OBSERVED: Mapping[str, str] = {
    "shedding": "Shedding",
    "bulkhead": "Bulkheads",
    "local_rate": "Local rates",
    "retry": "Retry budgets",
}
#: Setting of a protection -> its label, if its name does not say enough.
_PROTECTION = {
    "sla_ms": "SLA, ms",
    "tier": "Default priority of calls",
    "bulkhead.max_concurrent": "Calls at once",
    "bulkhead.shares": "Share, %",
    "bulkhead.queues": "Places in the queue",
    "bulkhead.when_full": "Without a free slot",
    "bulkhead.borrow": "Lend free slots to other tiers",
    "bulkhead.adaptive": "Adjust queues by waiting time",
    "bulkhead.resize_under_pressure": "Shrink under pressure",
    "bulkhead.share_idle": "The only tier that calls has all slots",
    "retry.attempts": "Attempts",
    "retry.budget_percent": "Retries of one pod at most, % of its first calls",
    "retry.load_factor_percent": "All attempts of the fleet at most, % of its first calls",
    "retry.base_ms": "First wait, ms",
    "retry.cap_ms": "Longest wait, ms",
    "retry.default_retry_after_ms": "Wait after a 429 without Retry-After, ms",
    "retry.idempotent": "Safe to repeat",
    "retry.floor_milli": "Extra retries, per second",
    "shedding.queue_max": "Shed when calls waiting exceed",
    "shedding.p95_percent": "Shed when p95 exceeds, % of the SLA",
    "shedding.shed_at": "Refuse the lowest tiers when pressure exceeds, %",
    "shedding.shed_hard_at": "Refuse all but the highest tier when pressure exceeds, %",
    "readiness.unready_percent": "Unready pods of a service at most, %",
    "readiness.hold_ms": "Pressure lasts, ms",
    "retries_per_s": "Retries of one process, per second",
    "routes": "How long requests should take",
}
#: Field -> the stored number for one of the unit that people read and type.
SCALES: Mapping[str, int] = {"protection.retry.floor_milli": 1_000}
_UNITS = frozenset(
    ("ms", "s", "\u00b5s", "%", "seconds", "percent", "per second", "calls per second", "% of the SLA")
)


def protection_label(setting: Setting) -> str:
    if setting.path in _PROTECTION:
        return _PROTECTION[setting.path]
    name, _, unit = setting.name.rpartition("_")
    if name and unit in ("ms", "percent"):
        return f"{name.replace('_', ' ').capitalize()}, {'ms' if unit == 'ms' else '%'}"
    return setting.name.replace("_", " ").capitalize()


def name_and_unit(label: str) -> tuple[str, str]:
    """``Open time, ms`` to ``("Open time", "ms")``. The unit is empty for a label without one."""
    name, _, unit = label.partition(", ")
    return (name, unit) if unit in _UNITS else (label, "")


def _protection_labels() -> dict[str, str]:
    found = {}
    for parts, settings in ((CALL_PARTS, CALL_SETTINGS), (POD_PARTS, POD_SETTINGS)):
        for setting in settings:
            label = protection_label(setting)
            if setting.part == "observe":
                label = f"Trial mode of {OBSERVED[setting.name.removesuffix('_until_us')].lower()}"
            elif setting.part:
                label = f"{parts[setting.part]}: {label[:1].lower()}{label[1:]}"
            found[f"protection.{setting.path}"] = label
    return found


#: Field of a dependency or an environment, as a revision stores it -> its label.
LABELS: Mapping[str, str] = {
    **{f"breaker.{column}": label for column, label in BREAKER.items()},
    **CALLS,
    **_protection_labels(),
}
