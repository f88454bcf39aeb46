"""Breakers: the policy of each, what reports it, and how it was called lately."""

from controlplane.checklist.lines import Answer, Item, Verdict, each, each_dependency, ok_if
from controlplane.checklist.read_state import CALL_FIELDS, LATELY, TESTED_WITHIN, CheckedDependency, State
from controlplane.policies.breaker_advice import SHORT_OPEN_MS
from controlplane.status.breakers import CANNOT_OPEN, NO_DATA, PHRASES

#: A breaker that needs a larger part of failures than this hardly opens.
_HIGH_PERCENT = 90


def _each_dependency(state: State) -> Answer:
    every = state.dependencies
    return ok_if(every, f"{len(every)} with breakers", "There is no dependency.", worst=Verdict.MISSING)


def _opens_too_early_or_hardly(one: CheckedDependency) -> bool:
    row = one.row
    hardly = row.consecutive_failures == 0 and row.failure_percent > _HIGH_PERCENT
    return row.consecutive_failures == 1 or hardly


def _windows(state: State) -> Answer:
    """Whether the usual number of calls in a window is enough to judge a percentage."""
    rates = {one.name: _calls_per_s(one) for one in state.dependencies}
    known = [one for one in state.dependencies if rates[one.name]]
    if not known:
        return Verdict.UNCHECKED, f"No call of the last {LATELY.days} days is in the history."
    few = [one.name for one in known if (rates[one.name] or 0) * one.row.window_s < one.row.minimum_calls]
    return each(
        few,
        known,
        "have on average fewer calls in a window than minimum_calls, so that no percentage trips them",
        f"Enough calls in each window, on average of {LATELY.days} days",
    )


def _calls_per_s(one: CheckedDependency) -> float | None:
    if one.total is None:
        return None
    return sum(one.total.per_s(place) or 0.0 for place in range(len(CALL_FIELDS)))


def _overrides(state: State) -> Answer:
    stuck = [one for one in state.status.breakers if one.effective in CANNOT_OPEN]
    names = [f"{one.name} is {PHRASES[one.effective]}" for one in stuck]
    return each(names, state.dependencies, "cannot open", "All can open")


def _reported(state: State) -> Answer:
    if not state.status.facts.live_servers:
        return Verdict.UNCHECKED, "No live pod reports."
    unseen = [one.name for one in state.status.breakers if one.effective == NO_DATA]
    return each(unseen, state.dependencies, "are reported by no live pod", "All are reported")


GROUPS = {
    "Breakers": (
        Item(
            "breaker-each-dependency",
            "Dependencies have breakers",
            "Add what the services call as dependencies. Each has a breaker.",
            "breakers.md#breakers",
            _each_dependency,
        ),
        Item(
            "breaker-thresholds",
            "Thresholds are neither too low nor too high",
            f"Use 3 to 5 consecutive failures, and at most {_HIGH_PERCENT} % of failures.",
            "breakers.md#when-it-trips",
            each_dependency(
                _opens_too_early_or_hardly,
                "open on one failure, or on nearly none",
                "All open after some failures",
            ),
        ),
        Item(
            "breaker-recovery",
            "The open time lets the dependency recover",
            f"Use at least {SHORT_OPEN_MS // 1000} s as open_ms.",
            "breakers.md#how-it-recovers",
            each_dependency(
                lambda one: one.row.open_ms < SHORT_OPEN_MS,
                f"stay open for less than {SHORT_OPEN_MS // 1000} s",
                f"All stay open for at least {SHORT_OPEN_MS // 1000} s",
            ),
        ),
        Item(
            "breaker-window",
            "The window of each breaker contains enough calls",
            "Use a longer window_s or a smaller minimum_calls, or rely on consecutive_failures.",
            "breakers.md#a-window-of-calls",
            _windows,
        ),
        Item(
            "breaker-fallback",
            "Each breaker has a described fallback",
            "Write into fallback_note what callers do while the breaker is open.",
            "protection.md#fallbacks",
            each_dependency(
                lambda one: not one.row.fallback_note,
                "have no fallback note",
                "All have a fallback note",
                worst=Verdict.MISSING,
            ),
        ),
        Item(
            "breaker-fallback-independent",
            "Fallbacks call no dependency that fails at the same time",
            "Read each fallback note, and confirm that the fallback works while its dependency is down.",
            "protection.md#fallbacks",
            lambda state: (
                Verdict.CONFIRM,
                f"{sum(bool(one.row.fallback_note) for one in state.dependencies)} fallback notes",
            ),
        ),
        Item(
            "breaker-overrides",
            "No override keeps a breaker from opening",
            "End the override, or deploy after it.",
            "breakers.md#overrides",
            _overrides,
        ),
        Item(
            "breaker-reported",
            "Live pods report each breaker",
            "Guard the calls of the dependency in a service, or remove the dependency.",
            "integration.md#3-guard-other-calls",
            _reported,
        ),
        Item(
            "breaker-exercised",
            f"Each breaker has opened and closed within {TESTED_WITHIN.days} days",
            "Let the dependency fail in a test, or force the breaker open for some minutes.",
            "protection.md#test-your-application",
            each_dependency(
                lambda one: one.opened_at is None or one.closed_at is None,
                "have no transition to open and back in the history",
                "All have opened and closed",
            ),
        ),
    ),
}
