"""How many retries one pod may make besides its budget, so that quiet pods together make few.

Each pod's budget is a part of its own first calls, so the sum is that part of the fleet's calls. Only the
floor, without which a quiet pod could never retry, needs a bound over the fleet. The bound applies before
there is trouble, from what pods counted in the last 30 s.
"""

from collections.abc import Mapping

from controlplane.gateway.servers.control_log import ControlLog
from controlplane.gateway.servers.rates import Key

#: ``retries_per_s`` of an environment without a protection of pods.
USUAL_PER_S = 10
#: A pod's own floor is at most this.
MAX_MILLI = 10_000

#: First calls per second, and pods that make them.
Calling = tuple[float, int]


def calling_here(milli: Mapping[Key, int], dependency: str) -> Calling:
    return milli.get(("first_calls", dependency), 0) / 1000, milli.get(("callers", dependency), 0)


def cap_milli(
    calls_per_s: float, callers: int, load_factor_percent: int, retries_per_s: int = USUAL_PER_S
) -> int | None:
    """Retries of one pod per 1,000 s; ``None`` where the pod's own bound is enough.

    Half of what the load factor allows is left to the budgets, which follow their own calls. Without a cap,
    the floors of all pods together are ``retries_per_s``, which each of them divides by their number.
    """
    allowed_per_s = (load_factor_percent - 100) / 100 / 2 * calls_per_s
    if allowed_per_s >= max(USUAL_PER_S, retries_per_s) or callers < 1:
        return None
    return min(MAX_MILLI, max(0, int(allowed_per_s * 1000 / callers)))


class RetryCaps:
    """The caps of one environment, computed again once per second."""

    AGAIN_S = 1.0

    def __init__(self, log: ControlLog) -> None:
        self.caps: dict[str, int] = {}
        #: By dependency, of pods that other gateways hear.
        self.elsewhere: dict[str, Calling] = {}
        self._made = float("-inf")
        self._log = log
        #: The most retries of all floors together, by the policy.
        self.retries_per_s = USUAL_PER_S

    def of(
        self, dependencies: list[str], factors: Mapping[str, int], milli: Mapping[Key, int], now: float
    ) -> dict[str, int]:
        """The caps for these dependencies, as far as they have one."""
        if now - self._made >= self.AGAIN_S:
            self._made = now
            self.caps = self._computed(factors, milli, now)
        return {name: self.caps[name] for name in dependencies if name in self.caps}

    def _computed(self, factors: Mapping[str, int], milli: Mapping[Key, int], now: float) -> dict[str, int]:
        found = {}
        self._log.keep_caps(factors)
        for name, factor in factors.items():
            calls, callers = calling_here(milli, name)
            more_calls, more_callers = self.elsewhere.get(name, (0.0, 0))
            calls, callers = calls + more_calls, callers + more_callers
            cap = cap_milli(calls, callers, factor, self.retries_per_s)
            if cap is not None:
                found[name] = cap
            if callers:
                self._log.note_cap(
                    name,
                    cap,
                    now,
                    calls_per_s=round(calls, 3),
                    callers=callers,
                    load_factor_percent=factor,
                    retries_per_s=self.retries_per_s,
                )
        return found
