"""One line for each part of a dependency's settings: what is in force."""

from collections.abc import Mapping

from msgspec import ValidationError

from controlplane.policies.sizing import bulkhead_words
from dashboard.setting_controls import Typed
from dashboard.templatetags.dashboard_tags import seconds
from fuseboard.contract.protection_fields import CALL_SETTINGS

_OFF = "off"


def summary_of(part: str, values: Mapping[str, str]) -> str:
    """``50 calls at once per pod; more wait 5 s``. ``values`` are those of the form."""
    try:
        return _summary(part, values)
    except (ValueError, ValidationError):
        # Values that are being typed. The form reports them at their fields.
        return "not complete"


def _summary(part: str, values: Mapping[str, str]) -> str:
    def number(name: str) -> int:
        return int(values[name])

    def time(name: str) -> str:
        return seconds(number(name))

    if part in _SWITCHED and values[f"protection.{part}.on"] != "on":
        return _OFF
    match part:
        case "breaker":
            failures, least = number("breaker.consecutive_failures"), number("breaker.minimum_calls")
            row = f"after {failures:,} failures in a row, or " if failures else ""
            share = f"at {values['breaker.failure_percent']} % of {least:,} calls or more"
            return f"opens {row}{share}; open for {time('breaker.open_ms')}"
        case "timeout":
            return f"{time('timeout_ms')} for a call"
        case "fallback":
            return values["fallback_note"] or "not described"
        case "":
            sla = f"SLA {time('protection.sla_ms')}" if number("protection.sla_ms") else "no SLA"
            return f"{values['protection.tier']} calls, {sla}"
        case "bulkhead":
            return _bulkhead(values)
        case "local_rate":
            limit = number("protection.local_rate.limit")
            return f"{limit:,} calls per {time('protection.local_rate.window_ms')} and pod"
        case "retry":
            retries = number("protection.retry.attempts") - 1
            word = "retry" if retries == 1 else "retries"
            return f"{retries} {word}, after {time('protection.retry.base_ms')}"
    raise LookupError(part)


_SWITCHED = frozenset(("bulkhead", "local_rate", "retry"))


def _bulkhead(values: Mapping[str, str]) -> str:
    stored = Typed(values)
    bulkhead = {one.name: stored.value(one) for one in CALL_SETTINGS if one.part == "bulkhead"}
    return bulkhead_words(bulkhead, values["protection.tier"])
