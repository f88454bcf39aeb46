"""Breakers: the policy of each, what reports it, and how it was called lately."""

from collections.abc import Iterator

from controlplane.checklist.lines import Item, Line, Verdict
from controlplane.checklist.read_state import CALL_FIELDS, LATELY, TESTED_WITHIN, CheckedDependency, State
from controlplane.policies.breaker_advice import SHORT_OPEN_MS
from controlplane.status.breakers import CANNOT_OPEN, NO_DATA, PHRASES

_BREAKERS = "Breakers"
#: A breaker that needs a larger part of failures than this hardly opens.
_HIGH_PERCENT = 90


def lines(state: State) -> Iterator[Line]:
    every = state.dependencies
    item = Item(
        key="breaker-each-dependency",
        group=_BREAKERS,
        check="Dependencies have breakers",
        do="Add what the services call as dependencies. Each has a breaker.",
        doc="breakers.md#breakers",
    )
    yield item.ok(f"{len(every)} with breakers") if every else item.missing("There is no dependency.")
    yield Item(
        key="breaker-thresholds",
        group=_BREAKERS,
        check="Thresholds are neither too low nor too high",
        do=f"Use 3 to 5 consecutive failures, and at most {_HIGH_PERCENT} % of failures.",
        doc="breakers.md#when-it-trips",
    ).each(
        [one.name for one in every if one.row.consecutive_failures == 1 or _opens_hardly(one)],
        every,
        wrong="open on one failure, or on nearly none",
        right="All open after some failures",
    )
    yield Item(
        key="breaker-recovery",
        group=_BREAKERS,
        check="The open time lets the dependency recover",
        do=f"Use at least {SHORT_OPEN_MS // 1000} s as open_ms.",
        doc="breakers.md#how-it-recovers",
    ).each(
        [one.name for one in every if one.row.open_ms < SHORT_OPEN_MS],
        every,
        wrong=f"stay open for less than {SHORT_OPEN_MS // 1000} s",
        right=f"All stay open for at least {SHORT_OPEN_MS // 1000} s",
    )
    yield _windows(state)
    yield Item(
        key="breaker-fallback",
        group=_BREAKERS,
        check="Each breaker has a described fallback",
        do="Write into fallback_note what callers do while the breaker is open.",
        doc="protection.md#fallbacks",
    ).each(
        [one.name for one in every if not one.row.fallback_note],
        every,
        wrong="have no fallback note",
        right="All have a fallback note",
        worst=Verdict.MISSING,
    )
    yield Item(
        key="breaker-fallback-independent",
        group=_BREAKERS,
        check="Fallbacks call no dependency that fails at the same time",
        do="Read each fallback note, and confirm that the fallback works while its dependency is down.",
        doc="protection.md#fallbacks",
    ).confirm(f"{sum(bool(one.row.fallback_note) for one in every)} fallback notes")
    yield from _breakers_now(state)


def _opens_hardly(one: CheckedDependency) -> bool:
    row = one.row
    return row.consecutive_failures == 0 and row.failure_percent > _HIGH_PERCENT


def _windows(state: State) -> Line:
    """Whether the usual number of calls in a window is enough to judge a percentage."""
    item = Item(
        key="breaker-window",
        group=_BREAKERS,
        check="The window of each breaker contains enough calls",
        do="Use a longer window_s or a smaller minimum_calls, or rely on consecutive_failures.",
        doc="breakers.md#a-window-of-calls",
    )
    rates = {one.name: _calls_per_s(one) for one in state.dependencies}
    known = [one for one in state.dependencies if rates[one.name]]
    if not known:
        return item.unchecked(f"No call of the last {LATELY.days} days is in the history.")
    few = [one.name for one in known if (rates[one.name] or 0) * one.row.window_s < one.row.minimum_calls]
    return item.each(
        few,
        known,
        wrong="have on average fewer calls in a window than minimum_calls, so that no percentage trips them",
        right=f"Enough calls in each window, on average of {LATELY.days} days",
    )


def _calls_per_s(one: CheckedDependency) -> float | None:
    if one.total is None:
        return None
    return sum(one.total.per_s(place) or 0.0 for place in range(len(CALL_FIELDS)))


def _breakers_now(state: State) -> Iterator[Line]:
    every = state.dependencies
    overridden = [
        f"{one.name} is {PHRASES[one.effective]}"
        for one in state.status.breakers
        if one.effective in CANNOT_OPEN
    ]
    yield Item(
        key="breaker-overrides",
        group=_BREAKERS,
        check="No override keeps a breaker from opening",
        do="End the override, or deploy after it.",
        doc="breakers.md#overrides",
    ).each(overridden, every, wrong="cannot open", right="All can open")
    item = Item(
        key="breaker-reported",
        group=_BREAKERS,
        check="Live pods report each breaker",
        do="Guard the calls of the dependency in a service, or remove the dependency.",
        doc="integration.md#3-guard-other-calls",
    )
    if not state.status.facts.live_servers:
        yield item.unchecked("No live pod reports.")
    else:
        unseen = [one.name for one in state.status.breakers if one.effective == NO_DATA]
        yield item.each(unseen, every, wrong="are reported by no live pod", right="All are reported")
    yield Item(
        key="breaker-exercised",
        group=_BREAKERS,
        check=f"Each breaker has opened and closed within {TESTED_WITHIN.days} days",
        do="Let the dependency fail in a test, or force the breaker open for some minutes.",
        doc="protection.md#test-your-application",
    ).each(
        [one.name for one in every if one.opened_at is None or one.closed_at is None],
        every,
        wrong="have no transition to open and back in the history",
        right="All have opened and closed",
    )
