"""Agents that wait for Redis as long as a busy machine pauses: for tests that are not about deadlines."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.policy import Tuning
from fuseboard.primitives import store_thread
from tests.agents.servers import DEADLINE_US

#: A machine of continuous integration has stopped for more than 1 s.
PATIENCE_US = 5_000_000
#: What locks, idempotency keys and backlogs of applications wait.
USUAL_ANSWER_S = store_thread.ANSWER_S
Apply = Callable[[Configuration, CheckedConfig], bool]


def patiently(apply: Apply) -> Apply:
    """``Configuration.apply``, with a deadline of 5 s in place of the usual ones."""

    def applied(self: Configuration, offer: CheckedConfig) -> bool:
        if offer.policy is not None and offer.policy.tuning.store_deadline_us in {
            Tuning().store_deadline_us,
            DEADLINE_US,
        }:
            tuning = replace(offer.policy.tuning, store_deadline_us=PATIENCE_US)
            offer = replace(offer, policy=replace(offer.policy, tuning=tuning))
        return apply(self, offer)

    return applied


def primitives_wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let locks, idempotency keys and backlogs of this process wait this long for Redis."""
    monkeypatch.setattr(store_thread, "CONNECT_S", seconds)
    monkeypatch.setattr(store_thread, "ANSWER_S", seconds)
