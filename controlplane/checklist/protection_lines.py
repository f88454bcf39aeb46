"""Bulkheads and retries: the protection of each dependency, and what bulkheads refused lately."""

from typing import Any

from controlplane.checklist.lines import Answer, Item, Verdict, always, each, each_dependency, listed, ok_if
from controlplane.checklist.read_state import (
    CALL_FIELDS,
    LATELY,
    REFUSED_BY_BULKHEADS,
    CheckedDependency,
    State,
)
from controlplane.policies.protection_advice import MANY_PERCENT, protection_advice
from fuseboard.contract.words import CallTier, Jitter

_NO_RETRIES = "No dependency has retry settings."


def _has_bulkhead(one: CheckedDependency) -> bool:
    return one.part("bulkhead") is not None


def _has_retry(one: CheckedDependency) -> bool:
    return one.part("retry") is not None


def _retry(one: CheckedDependency) -> dict[str, Any]:
    return one.part("retry") or {}


def _advice(state: State) -> Answer:
    every = state.dependencies
    bad = [f"{one.name} ({advice[0]})" for one in every if (advice := protection_advice(one.fields))]
    return each(bad, every, "have a contradiction", "No contradiction")


def _waits_too_long(one: CheckedDependency) -> bool:
    return bool((one.part("bulkhead") or {}).get("queue_timeout_ms", 0) >= one.row.timeout_ms)


def _tiers(state: State) -> Answer:
    tiers = [str(one.row.protection.get("tier", CallTier.STANDARD)) for one in state.dependencies]
    found = ", ".join(f"{tiers.count(tier)} {tier.value}" for tier in CallTier)
    return Verdict.CONFIRM, f"{found} by default"


def _refused_critical(one: CheckedDependency) -> bool:
    first = len(CALL_FIELDS)
    places = [first + at for at, name in enumerate(REFUSED_BY_BULKHEADS) if name.startswith("critical")]
    return one.total is not None and sum(one.total.values[place] or 0 for place in places) > 0


def _observing(state: State) -> Answer:
    observing = [one.part for one in state.status.facts.observing_now]
    return ok_if(not observing, "No part observes", f"Only observing: {listed(observing)}")


def _retries(state: State) -> Answer:
    parts = [_retry(one) for one in state.dependencies if _has_retry(one)]
    return each(
        [one.name for one in state.dependencies if not _has_retry(one)],
        state.dependencies,
        "have no retry settings: retries of a client library cannot be seen from here",
        f"At most {max((part['attempts'] for part in parts), default=0)} attempts",
    )


def _retry_times(state: State) -> Answer:
    """The longest time of all attempts, compared with how long the slowest route should take."""
    routes = state.status.facts.pod_protection.get("routes", ())
    if not routes:
        return Verdict.UNCHECKED, "It is not known how long requests may take: no route has an sla_ms."
    slowest_ms = max(route["sla_ms"] for route in routes)
    retried = [one for one in state.dependencies if _has_retry(one)]
    return each(
        [one.name for one in retried if _longest_ms(one) > slowest_ms],
        retried,
        f"can take longer with all attempts than {slowest_ms:,} ms, which the slowest route may take",
        f"All attempts end within {slowest_ms:,} ms",
        none=_NO_RETRIES,
    )


def _longest_ms(one: CheckedDependency) -> int:
    part = _retry(one)
    attempts, base, cap = part["attempts"], part["base_ms"], part["cap_ms"]
    waits = sum(min(cap, base * 2**number) for number in range(attempts - 1))
    timeouts = one.row.protection.get("timeouts_ms", ())
    return int(attempts * max(one.row.timeout_ms, *timeouts, 0) + waits)


def _idempotent(state: State) -> Answer:
    repeated = [one.name for one in state.dependencies if _retry(one).get("idempotent")]
    return (
        Verdict.CONFIRM,
        f"idempotent is on for {listed(repeated)}" if repeated else "idempotent is on for none",
    )


GROUPS = {
    "Bulkheads": (
        Item(
            "bulkhead-each-dependency",
            "Each dependency has a bulkhead",
            "Set the protection of the dependency: its kind suggests sizes.",
            "protection.md#bulkheads",
            each_dependency(
                lambda one: not _has_bulkhead(one),
                "have no bulkhead",
                "All have a bulkhead",
                worst=Verdict.MISSING,
            ),
        ),
        Item(
            "protection-advice",
            "Sizes and times of the protection fit each other",
            "Open the dependency's editor: it displays each contradiction.",
            "protection.md#advice",
            _advice,
        ),
        Item(
            "bulkhead-queue-timeout",
            "A call waits for a slot for less time than its timeout",
            "Use at most half of timeout_ms as queue_timeout_ms, and less than your callers wait.",
            "protection.md#bulkheads",
            each_dependency(
                _waits_too_long,
                "wait at least as long as a call can last",
                "All wait for less than timeout_ms",
                among=_has_bulkhead,
                none="No dependency has a bulkhead.",
            ),
        ),
        Item(
            "bulkhead-tiers",
            "No critical path uses the tier optional",
            "Confirm the tier of each dependency, and of the calls whose code names another one.",
            "protection.md#calls-that-matter-differently",
            _tiers,
        ),
        Item(
            "bulkhead-full",
            f"Bulkheads refused no critical call in {LATELY.days} days",
            "Add slots or pods, or move calls that can wait to a lower tier.",
            "protection.md#bulkheads",
            each_dependency(
                _refused_critical,
                "refused critical calls",
                "None refused a critical call",
                among=lambda one: one.total is not None and _has_bulkhead(one),
                none="No bulkhead has figures in the history.",
            ),
        ),
        Item(
            "protection-observes",
            "Each part of the protection refuses, and is not in trial mode",
            "End the observation before the deployment, or deploy knowing that the part protects nothing.",
            "protection.md#observe-first",
            _observing,
        ),
        Item(
            "bulkhead-answer",
            "Callers get 503 with Retry-After when a bulkhead is full",
            "Call your service while its bulkhead is full. The middlewares answer like this.",
            "protection.md#test-your-application",
            always(
                Verdict.UNCHECKED,
                "Your services answer their callers, and the control plane does not see these answers.",
            ),
        ),
    ),
    "Retries": (
        Item(
            "retry-settings",
            "Retries are bounded, and set centrally",
            "Set retries in the protection of the dependency, and switch off those of client libraries.",
            "protection.md#retries",
            _retries,
        ),
        Item(
            "retry-jitter",
            "Retries wait for a random time",
            "Use full as jitter, so that pods do not retry together.",
            "protection.md#retries",
            each_dependency(
                lambda one: _retry(one).get("jitter") == Jitter.NONE,
                "wait without jitter",
                "All have jitter",
                among=_has_retry,
                none=_NO_RETRIES,
            ),
        ),
        Item(
            "retry-budget",
            "A budget bounds retries while a dependency fails",
            f"Use a budget_percent of at most {MANY_PERCENT}.",
            "protection.md#the-retry-budget",
            each_dependency(
                lambda one: _retry(one).get("budget_percent", 0) > MANY_PERCENT,
                f"allow more than {MANY_PERCENT} % of retries",
                f"All allow at most {MANY_PERCENT} % of retries",
                among=_has_retry,
                none=_NO_RETRIES,
            ),
        ),
        Item(
            "retry-time",
            "All attempts of a call end while its request may still take",
            "Use fewer attempts or a shorter timeout_ms, and give the calls a deadline.",
            "protection.md#deadlines",
            _retry_times,
        ),
        Item(
            "retry-classification",
            "Only errors that can pass are retried, and repeated calls do no harm",
            "Confirm how the errors of your services are classified, and that each call marked "
            "idempotent is.",
            "protection.md#what-a-failed-call-says",
            _idempotent,
        ),
    ),
}
