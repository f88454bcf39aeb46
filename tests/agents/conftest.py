"""Event loops, and setups with several Redis servers."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from tests.agents.guarded_pods import Make, pods
from tests.agents.redis_topologies import Cluster, Watched

Loops = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]
LOOPS: Loops = {"asyncio": asyncio.new_event_loop}
with suppress(ModuleNotFoundError):  # not on Windows
    import uvloop

    LOOPS = {**LOOPS, "uvloop": uvloop.new_event_loop}
#: The loop of all tests; empty for that of asyncio, and both for tests that are marked.
ONE_LOOP = os.environ.get("FUSEBOARD_TEST_LOOP", "")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Loops:
    """Applications run the agent on either loop. They differ in timers, sockets and cancellation."""
    if ONE_LOOP:
        return {ONE_LOOP: LOOPS[ONE_LOOP]}
    if item.get_closest_marker("both_loops") is not None:
        return LOOPS
    return {"asyncio": LOOPS["asyncio"]}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark mutants as slow, but for the first one of each test, module and script."""
    seen: set[tuple[Any, ...]] = set()
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("mutants") is not None:
            values = item.callspec.params
            kind = item.function, values.get("module"), getattr(values.get("mutant"), "script", "")
            if kind in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(kind)


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
