"""Agents that a pause of the machine does not mislead, and setups with several Redis servers."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.current_configuration import Configuration
from tests.agents.redis_topologies import Cluster, Watched
from tests.agents.servers import DEADLINE_US


@pytest.fixture(autouse=True)
def no_pause_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let agents of this process wait 1 s for Redis where a policy says ``DEADLINE_US``.

    A busy machine pauses for longer than the 50 ms that a published policy may wait. The agent would then
    decide single calls by itself, and a test that expects exact numbers would fail, or pass by chance.
    Tests of the deadline use another value.
    """
    apply = Configuration.apply

    def patiently(self: Configuration, offer: CheckedConfig) -> bool:
        if offer.policy is not None and offer.policy.tuning.store_deadline_us == DEADLINE_US:
            tuning = msgspec.structs.replace(offer.policy.tuning, store_deadline_us=1_000_000)
            offer = replace(offer, policy=msgspec.structs.replace(offer.policy, tuning=tuning))
        return apply(self, offer)

    monkeypatch.setattr(Configuration, "apply", patiently)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three primaries and their replicas."""
    formation = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        formation.start()
        yield formation
    finally:
        formation.stop()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A primary and a replica, and three Sentinels."""
    formation = Watched(tmp_path_factory.mktemp("watched"))
    try:
        formation.start()
        yield formation
    finally:
        formation.stop()
