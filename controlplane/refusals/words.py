"""Refusals in words, for the API and the pages."""

from typing import Any

from controlplane.phrases import amount_words, window_words
from controlplane.policies.limits import full_columns
from fuseboard.contract.budgets import AtSpent
from fuseboard.contract.words import Mode, Reason

REASONS = {
    Reason.QUOTA: "the quota was spent",
    Reason.VENDOR_LIMIT: "the vendor limit was spent",
    Reason.CONCURRENCY: "all slots of the concurrency limit were in use",
    Reason.COOLING_DOWN: "the dependency had asked for a pause",
    Reason.BREAKER_OPEN: "the circuit breaker was open",
    Reason.PROBE_BUSY: "the circuit breaker was half-open, and all probes were in progress",
    Reason.FORCED_OPEN: "an operator had forced the circuit breaker open",
    Reason.SUSPENDED: "the tenant was suspended",
    Reason.BULKHEAD_FULL: "the bulkhead of the pod was full",
    Reason.QUEUE_TIMEOUT: "the call waited too long for a slot, or its deadline left no time",
    Reason.SHED: "the pod was overloaded",
    Reason.LOCAL_RATE: "the local rate of the pod was spent",
    Reason.BUDGET_SPENT: "the budget was spent",
    Reason.STORE_UNAVAILABLE: "Redis was unavailable, and the limit allows no calls without it",
    Reason.BACKLOG_FULL: "the backlog of the dependency was full",
}
_MODES = {
    Mode.SHARED: "decided by Redis, exact over the fleet",
    Mode.LOCAL: "decided by the pod alone, because Redis did not answer",
    Mode.RAMPING: "decided while Redis was coming back",
    Mode.DRILL: "decided by the pod alone, in a drill",
}
_CAUSES = {
    "queue": "its queue was full",
    "latency": "its answers took too long",
    "pressure": "it was under pressure",
}
#: The rate of a longer window in a chart does not show when the window is spent.
_LONGEST_RATE_S = 3_600
_AT_100 = {
    AtSpent.STOP: "then calls are refused",
    AtSpent.WARN: "then calls pass",
    AtSpent.DEGRADE: "then calls are degraded",
}


def reason_sentence(reason: str) -> str:
    """``The quota was spent``, also of a reason that only a newer release knows."""
    known = next((one for one in Reason if one == reason), None)
    words = REASONS.get(known) if known is not None else None
    return words[0].upper() + words[1:] if words else reason.replace("_", " ")


def reason_words(reason: Reason | None) -> str:
    return REASONS.get(reason, "for a reason that this release does not know") if reason else "unknown"


def mode_words(mode: Mode | None) -> str:
    return _MODES.get(mode, "") if mode else ""


def cause_words(rule: str) -> str:
    """Why a pod shed the request."""
    return _CAUSES.get(rule, "")


def limit_words(columns: dict[str, Any] | None) -> str:
    """``600 calls per min, burst 100``; empty without a limit."""
    if not columns:
        return ""
    full = full_columns(columns)
    count = f"{full['limit']:,} {full['measure']}"
    if full["algorithm"] == "concurrency":
        text = f"{count} at once"
    else:
        text = f"{count} per {full['period'] or window_words(full['window_s'])}"
        text += f", burst {full['burst']:,}" if full["algorithm"] == "token_bucket" else ""
    return f"{text}, only counted" if full["shadow"] else text


def budget_words(fields: dict[str, Any]) -> str:
    """``50.00 USD per month in UTC, then calls are refused``."""
    amount, raised, measure = fields["amount"], fields["raised_to"], fields["measure"]
    more = f", raised to {amount_words(raised, measure)}" if raised > amount else ""
    per = f"per {fields['period']} in {fields['time_zone']}"
    return f"{amount_words(amount, measure)}{more} {per}, {_AT_100[fields['at_100']]}"


def rate_of(columns: dict[str, Any] | None) -> float | None:
    """Calls per second of a limit whose window is short enough for a rate to mean something."""
    if not columns:
        return None
    full = full_columns(columns)
    counts_rates = full["algorithm"] != "concurrency" and not full["period"] and full["measure"] == "calls"
    return full["limit"] / full["window_s"] if counts_rates and full["window_s"] <= _LONGEST_RATE_S else None


def wait_words(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds} ms"
