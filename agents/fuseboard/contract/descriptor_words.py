"""Rules for descriptors in words, for ``fuseboard envoy`` and the page *Envoy*."""

from collections.abc import Iterator
from typing import TypeAlias

from fuseboard.contract.descriptors import (
    Charge,
    DescriptorDomain,
    DescriptorRule,
    Headers,
    Match,
    Means,
    Place,
    Verdict,
    rule_text,
)
from fuseboard.contract.limits import Limit

#: The place of a rule, and the rules from the top to it.
PlacedRule: TypeAlias = tuple[Place, tuple[DescriptorRule, ...]]

#: Unit of a file -> milliseconds. These become token buckets: no calendar period is as short.
BUCKETS = {"second": 1_000, "minute": 60_000}

_AFTER = "charged after the work; only a check with 0 hits is refused"
#: A call cannot be checked.
_CALL_AFTER = "charged after the work, never refused"

#: The headers that answers have, in words.
HEADERS = {
    Headers.OFF: "no headers with what is left",
    Headers.ON: "allowed answers have RateLimit and RateLimit-Policy",
    Headers.LEGACY: "answers have RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset",
}

_PLAIN = {
    Verdict.UNMATCHED: "no rule decides: it is allowed, and not counted",
    Verdict.UNLIMITED: "unlimited: it is allowed, and not counted",
    Verdict.REPLACED: "replaced by another descriptor: it is allowed, and not counted",
}


def rules_of(domain: DescriptorDomain) -> Iterator[PlacedRule]:
    """Every rule on all levels, in the order of the file."""
    yield from _rules_of((), (), domain.rules)


def _rules_of(
    place: Place, above: tuple[DescriptorRule, ...], rules: tuple[DescriptorRule, ...]
) -> Iterator[PlacedRule]:
    for number, rule in enumerate(rules):
        here, path = (*place, number), (*above, rule)
        yield here, path
        yield from _rules_of(here, path, rule.then)


def path_text(path: tuple[DescriptorRule, ...]) -> str:
    """``tenant > remote_address``: a rule with those above it."""
    return " > ".join(rule_text(rule) for rule in path)


def meaning(rule: DescriptorRule) -> str:
    """How the rule decides, in one line."""
    after = [
        *([f"hits are {rule.measure}"] if rule.measure != "calls" else []),
        *([_CALL_AFTER if rule.dependency else _AFTER] if rule.charge is Charge.AFTER else []),
        *(["counted, never refused: shadow_mode"] if rule.limit is not None and rule.limit.shadow else []),
        *(["all its values share the counter of a rate_limit"] if rule.share else []),
        *([f"a request may state up to {rule.accepts_override:,}"] if rule.accepts_override else []),
        *([f"named {rule.name}"] if rule.name else []),
        *([f"replaces {', '.join(rule.replaces)}"] if rule.replaces else []),
    ]
    if rule.limit is not None:
        text = limit_text(rule.limit)
    elif rule.unlimited:
        text = "unlimited"
    elif rule.dependency:
        text = f"a call to the dependency {rule.dependency}: its limits and its breaker decide"
    elif rule.means is Means.TENANT:
        text = "the value is a tenant: the quotas of the tenant decide"
    elif rule.means is not None:
        text = f"the value is the {rule.means.value} of the caller: limits that count by it decide, and "
        text += "the quotas of a tenant above it"
    else:
        text = "decides nothing by itself"
    return "; ".join([text, *after])


def limit_text(limit: Limit) -> str:
    """How a limit from a file counts, and why: ``10 per minute, in a token bucket, because ...``."""
    period = limit.period
    unit = period.value if period else next(unit for unit, ms in BUCKETS.items() if ms == limit.window_ms)
    if limit.limit == 0:
        return f"0 per {unit}: every hit is above the limit"
    if period:
        return f"{limit.limit:,} per {unit}, in calendar {unit}s of UTC"
    return (
        f"{limit.limit:,} per {unit}, in a token bucket, because no calendar period is as short: "
        f"{limit.burst:,} may pass at once, and it refills evenly"
    )


def decision_text(match: Match) -> str:
    """How a descriptor is decided: the meaning of its rule, whom it names, and what counts it."""
    if match.rule is None or match.verdict in _PLAIN:
        return _PLAIN[match.verdict]
    text = meaning(match.rule)
    if match.named:
        text += "; " + ", ".join(f"{means.value} {value}" for means, value in match.named.items())
    if match.counted:
        pairs = zip(match.counted[::2], match.counted[1::2], strict=True)
        text += "; counted by " + ", ".join(f"{key}={value}" for key, value in pairs)
    return text
