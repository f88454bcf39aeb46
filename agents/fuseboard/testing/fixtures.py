"""Fixtures of pytest. Import them where you use them, or in ``conftest.py``."""

from collections.abc import Iterator

import pytest

from fuseboard.testing.fake_agent import FakeAgent
from fuseboard.testing.time import no_sleep


@pytest.fixture
def fuseboard_agent() -> Iterator[FakeAgent]:
    """An agent that admits everything until the test says otherwise. Retries do not wait.

    Fails a test after which a permit is not reported: in production it would keep its slot.
    """
    agent = FakeAgent()
    with no_sleep(agent.clock) as waits:
        agent.waits = waits
        yield agent
    held = {name: agent.held(name) for name in agent.dependencies() if agent.held(name)}
    if held:
        pytest.fail(f"permits were not reported, so their slots are still held: {held}")
