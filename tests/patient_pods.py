"""Agents that wait for Redis as long as a busy machine pauses: for tests that are not about deadlines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.policy import Tuning
from fuseboard.primitives import store_thread
from fuseboard.store.single_store import SingleStore
from tests.agents.servers import DEADLINE_US

#: A machine of continuous integration has stopped for more than 1 s.
PATIENCE_US = 5_000_000
#: Locks, idempotency keys and backlogs of applications wait this long.
USUAL_ANSWER_S = store_thread.ANSWER_S
#: A connection, a probe and a single command of applications wait this long.
USUAL_TIMEOUT_S = 1.0
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


def store_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections and single commands to one Redis wait 5 s, unless they have another timeout than 1 s.

    An agent whose first probe is late decides alone, and then ramps: it has a tenth of each limit.
    """
    connect, call = SingleStore.connect, SingleStore.call

    async def connect_patiently(self: SingleStore, timeout: float = USUAL_TIMEOUT_S) -> None:
        await connect(self, _patient_s(timeout))

    async def call_patiently(self: SingleStore, *command: Any, timeout: float = USUAL_TIMEOUT_S) -> Any:
        return await call(self, *command, timeout=_patient_s(timeout))

    monkeypatch.setattr(SingleStore, "connect", connect_patiently)
    monkeypatch.setattr(SingleStore, "call", call_patiently)


def _patient_s(timeout_s: float) -> float:
    return PATIENCE_US / 1e6 if timeout_s == USUAL_TIMEOUT_S else timeout_s


@contextmanager
def usual_answers() -> Iterator[None]:
    """Let locks, idempotency keys and backlogs wait as in an application, while Redis is frozen."""
    with pytest.MonkeyPatch.context() as patch:
        primitives_wait(patch, USUAL_ANSWER_S)
        yield


def primitives_wait(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let locks, idempotency keys and backlogs of this process wait this long for Redis."""
    monkeypatch.setattr(store_thread, "CONNECT_S", seconds)
    monkeypatch.setattr(store_thread, "ANSWER_S", seconds)
