"""Bulkheads and retries: the protection of each dependency, and what bulkheads refused lately."""

from collections.abc import Iterator

from controlplane.checklist.lines import Item, Line, Verdict, listed
from controlplane.checklist.read_state import (
    CALL_FIELDS,
    LATELY,
    REFUSED_BY_BULKHEADS,
    CheckedDependency,
    State,
)
from controlplane.policies.protection_advice import MANY_PERCENT, protection_advice
from fuseboard.contract.words import CallTier, Jitter

_BULKHEADS, _RETRIES = "Bulkheads", "Retries"


def lines(state: State) -> Iterator[Line]:
    yield from _bulkheads(state)
    yield from _retries(state)


def _bulkheads(state: State) -> Iterator[Line]:
    every = state.dependencies
    with_one = {one.name: part for one in every if (part := one.part("bulkhead")) is not None}
    yield Item(
        key="bulkhead-each-dependency",
        group=_BULKHEADS,
        check="Each dependency has a bulkhead",
        do="Set the protection of the dependency: its kind suggests sizes.",
        doc="protection.md#bulkheads",
    ).each(
        [one.name for one in every if one.name not in with_one],
        every,
        wrong="have no bulkhead",
        right="All have a bulkhead",
        worst=Verdict.MISSING,
    )
    yield Item(
        key="protection-advice",
        group=_BULKHEADS,
        check="Sizes and times of the protection fit each other",
        do="Open the dependency's editor: it displays each contradiction.",
        doc="protection.md#advice",
    ).each(
        [f"{one.name} ({advice[0]})" for one in every if (advice := protection_advice(one.fields))],
        every,
        wrong="have a contradiction",
        right="No contradiction",
    )
    yield _waits(state)
    tiers = [str(one.row.protection.get("tier", CallTier.STANDARD)) for one in every]
    yield Item(
        key="bulkhead-tiers",
        group=_BULKHEADS,
        check="No critical path uses the tier optional",
        do="Confirm the tier of each dependency, and of the calls whose code names another one.",
        doc="protection.md#calls-that-matter-differently",
    ).confirm(", ".join(f"{tiers.count(tier)} {tier.value}" for tier in CallTier) + " by default")
    yield _full(state)
    observing = [one.part for one in state.status.facts.observing_now]
    item = Item(
        key="protection-observes",
        group=_BULKHEADS,
        check="Each part of the protection refuses, and does not only observe",
        do="End the observation before the deployment, or deploy knowing that the part protects nothing.",
        doc="protection.md#observe-first",
    )
    yield item.attention(f"Only observing: {listed(observing)}") if observing else item.ok("No part observes")
    yield Item(
        key="bulkhead-answer",
        group=_BULKHEADS,
        check="Callers get 503 with Retry-After when a bulkhead is full",
        do="Call your service while its bulkhead is full. The middlewares answer like this.",
        doc="protection.md#test-your-application",
    ).unchecked("Your services answer their callers, and the control plane does not see these answers.")


def _waits(state: State) -> Line:
    item = Item(
        key="bulkhead-queue-timeout",
        group=_BULKHEADS,
        check="A call waits for a slot for less time than its timeout",
        do="Use at most half of timeout_ms as queue_timeout_ms, and less than your callers wait.",
        doc="protection.md#bulkheads",
    )
    with_one = [one for one in state.dependencies if one.part("bulkhead") is not None]
    long = [
        one.name
        for one in with_one
        if (one.part("bulkhead") or {}).get("queue_timeout_ms", 0) >= one.row.timeout_ms
    ]
    return item.each(
        long,
        with_one,
        wrong="wait at least as long as a call can last",
        right="All wait for less than timeout_ms",
        none="No dependency has a bulkhead.",
    )


def _full(state: State) -> Line:
    item = Item(
        key="bulkhead-full",
        group=_BULKHEADS,
        check=f"Bulkheads refused no critical call in {LATELY.days} days",
        do="Add slots or pods, or move calls that can wait to a lower tier.",
        doc="protection.md#bulkheads",
    )
    known = [one for one in state.dependencies if one.total is not None and one.part("bulkhead") is not None]
    first = len(CALL_FIELDS)
    critical = [first + at for at, name in enumerate(REFUSED_BY_BULKHEADS) if name.startswith("critical")]
    full = [
        one.name for one in known if one.total and sum(one.total.values[place] or 0 for place in critical)
    ]
    return item.each(
        full,
        known,
        wrong="refused critical calls",
        right="None refused a critical call",
        none="No bulkhead has figures in the history.",
    )


def _retries(state: State) -> Iterator[Line]:
    every = state.dependencies
    parts = {one.name: part for one in every if (part := one.part("retry")) is not None}
    item = Item(
        key="retry-settings",
        group=_RETRIES,
        check="Retries are bounded, and set centrally",
        do="Set retries in the protection of the dependency, and switch off those of client libraries.",
        doc="protection.md#retries",
    )
    yield item.each(
        [one.name for one in every if one.name not in parts],
        every,
        wrong="have no retry settings: retries of a client library cannot be seen from here",
        right=f"At most {max((part['attempts'] for part in parts.values()), default=0)} attempts",
    )
    yield Item(
        key="retry-jitter",
        group=_RETRIES,
        check="Retries wait for a random time",
        do="Use full as jitter, so that pods do not retry together.",
        doc="protection.md#retries",
    ).each(
        [name for name, part in parts.items() if part.get("jitter") == Jitter.NONE],
        parts,
        wrong="wait without jitter",
        right="All have jitter",
        none="No dependency has retry settings.",
    )
    yield Item(
        key="retry-budget",
        group=_RETRIES,
        check="A budget bounds retries while a dependency fails",
        do=f"Use a budget_percent of at most {MANY_PERCENT}.",
        doc="protection.md#the-retry-budget",
    ).each(
        [name for name, part in parts.items() if part.get("budget_percent", 0) > MANY_PERCENT],
        parts,
        wrong=f"allow more than {MANY_PERCENT} % of retries",
        right=f"All allow at most {MANY_PERCENT} % of retries",
        none="No dependency has retry settings.",
    )
    yield _retry_times(state)
    repeated = [name for name, part in parts.items() if part.get("idempotent")]
    item = Item(
        key="retry-classification",
        group=_RETRIES,
        check="Only errors that can pass are retried, and repeated calls do no harm",
        do="Confirm how the errors of your services are classified, and that each call marked idempotent is.",
        doc="protection.md#what-a-failed-call-says",
    )
    yield item.confirm(
        f"idempotent is on for {listed(repeated)}" if repeated else "idempotent is on for none"
    )


def _retry_times(state: State) -> Line:
    """The longest time of all attempts, compared with how long the slowest route should take."""
    item = Item(
        key="retry-time",
        group=_RETRIES,
        check="All attempts of a call end while its request may still take",
        do="Use fewer attempts or a shorter timeout_ms, and give the calls a deadline.",
        doc="protection.md#deadlines",
    )
    routes = state.status.facts.pod_protection.get("routes", ())
    if not routes:
        return item.unchecked("It is not known how long requests may take: no route has an sla_ms.")
    slowest_ms = max(route["sla_ms"] for route in routes)
    retried = [one for one in state.dependencies if one.part("retry") is not None]
    return item.each(
        [one.name for one in retried if _longest_ms(one) > slowest_ms],
        retried,
        wrong=f"can take longer with all attempts than {slowest_ms:,} ms, which the slowest route may take",
        right=f"All attempts end within {slowest_ms:,} ms",
        none="No dependency has retry settings.",
    )


def _longest_ms(one: CheckedDependency) -> int:
    part = one.part("retry") or {}
    attempts, base, cap = part["attempts"], part["base_ms"], part["cap_ms"]
    waits = sum(min(cap, base * 2**number) for number in range(attempts - 1))
    timeouts = one.row.protection.get("timeouts_ms", ())
    return int(attempts * max(one.row.timeout_ms, *timeouts, 0) + waits)
