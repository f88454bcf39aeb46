"""Fakes for the tests of applications: an agent that refuses, delays or fails on demand, and asks nobody.

::

    from fuseboard.testing import FakeAgent, fuseboard_agent  # the second is a fixture of pytest

    async def test_an_open_breaker_is_answered_from_the_cache(fuseboard_agent):
        fuseboard_agent.open("payments-api")
        assert await balance(fuseboard_agent) == "from the cache"
"""

from typing import TYPE_CHECKING

from fuseboard.testing.fake_agent import FakeAgent
from fuseboard.testing.time import ManualClock, attempts, no_sleep

if TYPE_CHECKING:
    from fuseboard.testing.fixtures import fuseboard_agent

__all__ = ["FakeAgent", "ManualClock", "attempts", "fuseboard_agent", "no_sleep"]


def __getattr__(name: str) -> object:
    # Only the fixture needs pytest.
    if name == "fuseboard_agent":
        from fuseboard.testing.fixtures import fuseboard_agent

        return fuseboard_agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
