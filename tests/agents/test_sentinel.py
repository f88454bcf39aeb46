"""Decisions by the primary that real Sentinels agree on, after a crash and after a demotion."""

import asyncio
import contextlib
from pathlib import Path

import msgspec
import pytest
import redis

from fuseboard.cancellation import STOP_S, stop_tasks
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.watch import Watch
from fuseboard.contract.policy import Limit, Policy, Tier
from fuseboard.contract.scripts import ADMIT
from fuseboard.contract.store_url import Address, StoreUrl
from fuseboard.contract.words import Algorithm, FailurePolicy, Mode
from fuseboard.store.sentinel_store import SentinelStore
from fuseboard.store.sentinels import Sentinels
from fuseboard.store.store import Reply
from tests.agents.published import publish
from tests.agents.redis_topologies import DOWN_AFTER_MS, PAUSED_S, Member, Watched, free_ports
from tests.agents.servers import TUNING, Server, configured, running
from tests.agents.windows import worst_window
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)
#: No decision without Redis: what is admitted was admitted there.
STRICT = Limit(
    name="requests",
    limit=50,
    window_ms=400,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.FAIL_CLOSED,
)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free", quotas=(STRICT,)), Tier(name="unlimited")),
    # A probe that nobody asked for comes long after these tests: what returns, was told to.
    tuning=msgspec.structs.replace(TUNING, probe_interval_ms=60_000),
)
#: Noticed by the Sentinels, agreed on, carried out, told; and a machine that is busy meanwhile.
FAILOVER_S = DOWN_AFTER_MS / 1000 + PAUSED_S


class Load:
    """Four callers at each server, until stopped."""

    def __init__(self, servers: list[Server]) -> None:
        self.admitted: list[int] = []
        self._going = True
        self._tasks = [asyncio.create_task(self._ask(server)) for server in servers for _ in range(4)]

    async def _ask(self, server: Server) -> None:
        while self._going:
            decision = await server.admission.admit_request("acme")
            self.admitted.extend(charge.at_us for charge in decision.charges if not charge.local)
            await asyncio.sleep(0.002)

    async def stop(self) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)


async def counting(load: Load) -> None:
    """Wait until decisions are being made again."""
    so_far = len(load.admitted)
    await eventually(lambda: len(load.admitted) > so_far)


async def test_a_demoted_primary_is_left_at_once(watched: Watched):
    before = watched.primary()
    async with running(watched.url, "web-1", configured(POLICY)) as server:
        load = Load([server])
        try:
            await counting(load)
            await eventually(lambda: _failed_over(watched, before), within_s=2 * FAILOVER_S)
            await eventually(lambda: _name_of(server, watched) is watched.primary(), within_s=FAILOVER_S)
            await eventually(lambda: server.admission.mode is Mode.SHARED, within_s=FAILOVER_S)
            await counting(load)
        finally:
            await load.stop()
        # A failover that is coordinated loses nothing that was counted.
        assert worst_window(load.admitted, 400_000) <= 50


def _failed_over(watched: Watched, before: Member) -> bool:
    """Whether there is another primary; if not, it is ordered, again when the last one came to nothing."""
    if watched.primary() is not before:
        return True
    with contextlib.suppress(redis.ResponseError):  # under way, too recent, or the replica not in step yet
        watched.sentinels[0].client.execute_command("SENTINEL", "FAILOVER", watched.NAME, "COORDINATED")
    return False


def _name_of(server: Server, watched: Watched) -> Member | None:
    """Whom this server's decisions are made by."""
    for member in watched.data:
        if any(client["name"] == "fuseboard" for client in member.client.client_list()):
            return member
    return None


async def test_a_crashed_primary_is_followed_and_no_window_sees_more(watched: Watched):
    configuration = Configuration(environment="production")
    watch = Watch(url=watched.url, configuration=configuration)
    await asyncio.to_thread(watched.settle)
    victim = watched.primary()
    successor = next(server for server in watched.data if server is not victim)
    publish(victim.client, POLICY, revision=1)
    watch.start()
    async with (
        running(watched.url, "web-1", configured(POLICY)) as one,
        running(watched.url, "web-2", configured(POLICY)) as two,
    ):
        servers = [one, two]
        load = Load(servers)
        try:
            await counting(load)
            await eventually(lambda: configuration.snapshot.head.revision == 1)
            victim.kill()
            await eventually(lambda: all(server.admission.mode is Mode.LOCAL for server in servers))
            await eventually(
                lambda: all(server.admission.mode is Mode.SHARED for server in servers), within_s=FAILOVER_S
            )
            await counting(load)
            assert successor.client.info("replication")["role"] == "master"
            publish(successor.client, POLICY, revision=2)
            await eventually(lambda: configuration.snapshot.head.revision == 2)
        finally:
            await load.stop()
            await watch.stop()
        assert worst_window(load.admitted, 400_000) <= 50


async def test_sentinels_that_name_different_primaries_are_asked_again_soon(tmp_path: Path):
    """During a failover most of them may still name the old primary, and it may still answer."""
    old, new, *ports = free_ports(5)
    sentinels = [
        lone_sentinel(tmp_path, port, primary) for port, primary in zip(ports, (old, old, new), strict=True)
    ]
    named: list[int] = []

    def use(primary: Address) -> bool:
        named.append(primary.port)
        return True  # connected to it

    async with contextlib.AsyncExitStack() as stack:
        for sentinel in sentinels:
            stack.callback(sentinel.stop)
            sentinel.start()
        await eventually(lambda: all(sentinel.answers() for sentinel in sentinels))
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        url = f"redis+sentinel://{hosts}/{Watched.NAME}/0?sentinel_password={sentinels[0].password}"
        following = asyncio.create_task(Sentinels(StoreUrl.parse(url)).follow(use))
        stack.push_async_callback(stop_tasks, following, within_s=STOP_S)
        await eventually(lambda: len(named) > 2)
        assert set(named) == {old}
        for sentinel in sentinels[:2]:
            # Without a message to those who listen.
            sentinel.client.execute_command("SENTINEL", "REMOVE", Watched.NAME)
            sentinel.client.execute_command("SENTINEL", "MONITOR", Watched.NAME, "127.0.0.1", new, 2)
        await eventually(lambda: named[-1] == new)


def lone_sentinel(folder: Path, port: int, primary: int) -> Member:
    """A Sentinel that knows no other, and so agrees with none."""
    settings = (
        "bind 127.0.0.1\nport {port}\ndir {folder}\nrequirepass {password}\n"
        f"sentinel monitor {Watched.NAME} 127.0.0.1 {primary} 2\n"
    )
    return Member(folder, f"sentinel-{port}", port, settings, "a-password-of-one-test", "--sentinel")


async def test_a_server_that_is_no_primary_is_never_asked(watched: Watched):
    """Its own word counts: it may have been demoted a moment ago, and Sentinels may be behind."""
    store = SentinelStore(StoreUrl.parse(watched.url))
    lost: list[Exception | None] = []
    replies: list[Reply] = []
    store.on_lost(lost.append)
    try:
        await store.connect()
        primary = watched.primary()
        await asyncio.to_thread(primary.client.replicaof, "127.0.0.1", 1)
        store.run(ADMIT, (b"{t:acme}:quota",), [0, "t", 0, 0, 0], replies.append)
        await eventually(lambda: lost)
        assert str(replies[0]).startswith("READONLY")
        assert not store.connected
        with pytest.raises(ConnectionRefusedError, match="is not a primary"):
            await store.connect()
        await asyncio.to_thread(primary.client.replicaof, "NO", "ONE")
        await store.connect()
    finally:
        await store.close()
