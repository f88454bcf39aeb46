"""The configuration of the fault tests: tenants, dependencies and their limits."""

from typing import Any

ENVIRONMENT = "production"

#: Calls per window that the limits of the rows allow, and their windows in microseconds.
LIMIT, WINDOW_S = 60, 2
WINDOW_US = WINDOW_S * 1_000_000

#: Half-open permits that may exist at once.
PROBES = 3

#: That of ``tools.demo.scenario``, with shorter times.
BREAKER = {
    "window_s": 2,
    "minimum_calls": 10,
    "open_ms": 2_000,
    "open_max_ms": 8_000,
    "probe_lease_ms": 2_000,
    "slow_ms": 1_000,
    "probes": PROBES,
}


def _window(failure_policy: str) -> dict[str, Any]:
    return {
        "name": "contract",
        "limit": LIMIT,
        "window_s": WINDOW_S,
        "algorithm": "sliding_window",
        "failure_policy": failure_policy,
    }


#: Dependency -> its vendor limit.
DEPENDENCIES: dict[str, dict[str, Any] | None] = {
    "open-road": None,
    "fragile": None,
    "held": None,
    "strict": _window("fail_closed"),
    "reserved": _window("reserved"),
    "shares": _window("local_share"),
}

#: Tenant -> its quota of requests.
TENANTS: dict[str, dict[str, Any]] = {
    "acme": {"limit": 100_000, "window_s": 1, "burst": 100_000, "failure_policy": "fail_open"},
    # Counts exactly what was charged, all day long.
    "ledger": {
        "limit": 100_000_000,
        "burst": 1,
        "window_s": 86_400,
        "algorithm": "fixed_window",
        "period": "day",
        "failure_policy": "fail_open",
    },
    "penny": {"limit": 8, "window_s": 1, "burst": 8, "failure_policy": "local_share"},
}

#: A mix of everything, for rows without special needs.
EVERYTHING = ["t:acme", "t:ledger", *(f"d:{name}" for name in DEPENDENCIES)]


def quota(limit: int) -> dict[str, Any]:
    """Arguments of an edit that every pod can see: Penny's calls per second."""
    named = {"tenant": "penny", "quota": "requests", "expected_version": None}
    return {**named, "limit": limit, "window_s": 1, "burst": limit}
