"""A Redis Cluster over TLS: the configured node and the nodes that it names are verified alike."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from controlplane.redis.clients import connect
from fuseboard.configuration.redis_source import RedisSource
from fuseboard.contract.store_url import with_ca
from fuseboard.store import open_store
from tests.agents.redis_topologies import Member, free_ports
from tests.controlplane.processes.test_tls import Papers
from tests.controlplane.redis.tls_relay import relay
from tests.waiting import wait_until

PASSWORD = "behind-a-relay"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"), "ours")


@pytest.fixture(scope="module")
def secured(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Cluster of one node, which names itself with another port than the URL."""
    port, bus = free_ports(2)
    with relay(papers.server(), port) as told, relay(papers.server(), port) as named:
        settings = (
            "bind 127.0.0.1\nport {port}\ndir {folder}\nrequirepass {password}\nsave ''\n"
            f"cluster-enabled yes\ncluster-port {bus}\n"
            f"cluster-announce-ip 127.0.0.1\ncluster-announce-port {named}\n"
        )
        node = Member(tmp_path_factory.mktemp("cluster"), "node", port, settings, PASSWORD)
        node.start()
        try:
            wait_until(node.answers)
            node.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            wait_until(lambda: b"cluster_state:ok" in node.client.execute_command("CLUSTER", "INFO"))
            slots = node.client.execute_command("CLUSTER", "SLOTS")
            assert slots[0][2][1] == named
            yield f"rediss+cluster://:{PASSWORD}@127.0.0.1:{told}/"
        finally:
            node.stop()


async def test_an_agent_decides_and_watches_over_tls(secured: str, papers: Papers) -> None:
    store = open_store(with_ca(secured, papers.ca))
    source = RedisSource(url=with_ca(secured, papers.ca), environment="production")
    try:
        await store.connect(10.0)
        assert store.serves(b"some:key")
        assert await source.ask(("PING",)) == [b"PONG"]
    finally:
        await store.close()
        await source.close()


def test_the_control_plane_publishes_over_tls(secured: str, papers: Papers) -> None:
    with connect(with_ca(secured, papers.ca), deadline_s=10.0) as client:
        client.set("published", "1")
        assert client.get("published") == b"1"


async def test_neither_trusts_another_authority(secured: str, tmp_path: Path) -> None:
    url = with_ca(secured, Papers(tmp_path, "theirs").ca)
    stranger = open_store(url)
    with pytest.raises((ssl.SSLError, ConnectionError), match=r"(?i)certificate"):
        await stranger.connect(10.0)
    await stranger.close()
    with pytest.raises(redis.RedisError):
        connect(url, deadline_s=10.0)
