"""Breakers, as this server tells of them."""

from math import ceil
from time import monotonic

from fuseboard.breaker.fleet_breaker import Gate
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import BreakerState, OverrideMode


def view_of(gate: Gate, override: OverrideMode | None, *, local: bool) -> BreakerView:
    """What the next beat says of it."""
    now = monotonic()
    alone = local or (gate.state is BreakerState.CLOSED and gate.local.state is not BreakerState.CLOSED)
    state, since, until = gate.state, gate.since, gate.until
    if alone:
        state, since, until = gate.local.state, gate.local.since, gate.local.until
    remaining = max(0.0, until - now) if state is BreakerState.OPEN else 0.0
    calls, failures, consecutive = gate.window
    return BreakerView(
        dependency=gate.name,
        state=state,
        generation=gate.generation,
        for_ms=int((now - since) * 1000),
        remaining_ms=ceil(remaining * 1000),
        override=override,
        local=alone,
        window_calls=calls,
        window_failures=failures,
        consecutive_failures=consecutive,
    )
