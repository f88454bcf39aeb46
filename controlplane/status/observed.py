"""Parts of the protection that only observe, in words: pages, alerts and messages use the same."""

from controlplane.phrases import moment
from controlplane.status.facts import Facts, Observing

#: Part -> its name. Only shedding is singular.
OBSERVED = {
    "shedding": "Shedding",
    "bulkhead": "Bulkheads",
    "local_rate": "Local rates",
    "retry": "Retry budgets",
}


def observed_head(one: Observing) -> str:
    """``Shedding is in trial mode``."""
    return f"{OBSERVED[one.part]} {observed_join(one)} in trial mode"


def observed_join(one: Observing) -> str:
    return "is" if one.part == "shedding" else "are"


def observed_until(one: Observing) -> str:
    """``until 10:00 UTC on 24 November, by ada: "Watch first"``."""
    until = f"until {moment(one.until)}"
    by = f", by {one.by}" if one.by else ""
    return f"{until}{by}: \u201c{one.reason}\u201d" if one.reason else f"{until}{by}"


def observed_rate(facts: Facts, one: Observing) -> str:
    """Calls that it would refuse. Pods count them for shedding, and for all parts of calls together."""
    if one.part == "shedding":
        shed = sum(pod.load.observed_per_s for pod in facts.live_servers if pod.load)
        return f"It would have refused {f'{shed:.1f} requests/s' if shed else 'none'}."
    rate = sum(calls.observed_per_s for calls in facts.figures.protection.values())
    parts = [OBSERVED[other.part].lower() for other in facts.observing_now if other.part != "shedding"]
    who = "They" if len(parts) == 1 else " and ".join(parts).capitalize() + " together"
    return f"{who} would have refused {f'{rate:.1f} calls/s' if rate else 'none'}."
