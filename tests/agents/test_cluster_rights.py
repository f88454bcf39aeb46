"""A Cluster in the profile ``hardened``: its user calls functions, and may not load scripts."""

import re
from collections.abc import Iterator

import pytest

from fuseboard.contract.scripts import SCRIPTS
from fuseboard.store import open_store
from fuseboard.store.store import FunctionMissingError
from tests.agents.redis_topologies import Cluster


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    rights = ("on", ">bare", "~*", "&*", "+@all", "-script")
    for node in cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "bare", *rights)
    try:
        yield cluster.url.replace(f":{cluster.password}@", "bare:bare@")
    finally:
        for node in cluster.nodes:
            node.client.execute_command("ACL", "DELUSER", "bare")
        for node in cluster.primaries():
            node.client.function_flush()


async def test_a_pod_says_which_function_is_missing(cluster: Cluster, url: str):
    """It said that all primaries cannot be reached, of healthy servers."""
    assert "bare:bare@" in url
    store = open_store(url)
    try:
        with pytest.raises(FunctionMissingError, match=r"fuseboard_\w+ is missing.*FUSEBOARD_ACL_PROFILE"):
            await store.connect(30)
        without, *others = cluster.primaries()
        for node in others:
            for script in SCRIPTS:
                node.client.function_load(script.library)
        await store.connect(30)
        assert store.connected
        assert "1 of 3 primaries" in store.trouble
        assert f"{without.port}" in store.trouble
        assert re.search(r"function fuseboard_\w+ is missing", store.trouble)
    finally:
        await store.close()


async def test_a_pod_says_that_a_node_refuses_its_password(cluster: Cluster, url: str):
    refusing, *others = cluster.primaries()
    for node in others:
        for script in SCRIPTS:
            node.client.function_load(script.library)
    refusing.client.execute_command("ACL", "SETUSER", "bare", "resetpass")
    store = open_store(url)
    try:
        await store.connect(30)
        assert "refuses the connection: WRONGPASS" in store.trouble
    finally:
        await store.close()
