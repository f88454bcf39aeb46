"""How long a call may take, by the dependency and the tier of the call."""

from fuseboard.contract.policy import Dependency
from fuseboard.contract.words import CallTier

_PLACES: dict[str, int] = {tier: place for place, tier in enumerate(CallTier)}


def timeout_ms_of(dependency: Dependency, tier: str | None = None) -> int:
    """The timeout of a call of this tier; ``None`` is the tier of callers that name none."""
    protection = dependency.protection
    if protection is None:
        return dependency.timeout_ms
    return protection.timeouts_ms[_PLACES[tier or protection.tier]] or dependency.timeout_ms


def longest_timeout_ms(dependency: Dependency) -> int:
    """No call of any tier takes longer, and no part of a stream."""
    tiers = dependency.protection.timeouts_ms if dependency.protection is not None else ()
    return max(dependency.timeout_ms, dependency.first_part_ms, dependency.between_parts_ms, *tiers)
