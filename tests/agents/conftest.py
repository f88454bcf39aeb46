"""Setups with several Redis servers."""

from collections.abc import Iterator

import pytest

from tests.agents.guarded_pods import Make, pods
from tests.agents.redis_topologies import Cluster, Watched


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


@pytest.fixture
def make_pod() -> Iterator[Make]:
    """Makes pods in virtual time whose dependency has a protection."""
    yield from pods()
