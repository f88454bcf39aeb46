"""One primary of a Cluster comes back: its calls do not arrive all at once, although there is no ramp."""

import asyncio
import signal

import msgspec
import pytest

from fuseboard import AgentSettings, LockTaken, blocking
from fuseboard.contract.words import FailurePolicy, Mode
from tests.agents.redis_topologies import Cluster
from tests.agents.servers import Server
from tests.agents.test_cluster import QUOTA, fleet, is_decided_locally, policy, tenants_of
from tests.waiting import eventually

SERVERS, TENANTS, CALLS = 4, 5, 50


def counted(cluster: Cluster, command: str) -> int:
    found = [node.client.info("commandstats").get(f"cmdstat_{command}", {}) for node in cluster.nodes]
    return sum(int(one.get("calls", 0)) for one in found)


async def test_a_returning_shard_gets_the_reports_first_and_one_question_per_domain_at_a_time(
    cluster: Cluster,
):
    cluster.settle()
    cluster.flush()
    victim = cluster.primaries()[0]
    tenants = tenants_of(cluster, victim, TENANTS)
    quota = msgspec.structs.replace(QUOTA, limit=100_000, failure_policy=FailurePolicy.LOCAL_SHARE)
    async with fleet(cluster, SERVERS, policy(quota, deadline_us=100_000)) as servers:

        async def everybody_asks(times: int) -> None:
            calls = [
                server.admission.admit_request(tenant)
                for server in servers
                for tenant in tenants
                for _ in range(times)
            ]
            assert all(decision.allowed for decision in await asyncio.gather(*calls))

        def is_missing(server: Server) -> bool:
            return server.admission.health.cause.startswith("1 of 3")

        await everybody_asks(1)
        victim.send(signal.SIGSTOP)
        try:
            while not all(map(is_missing, servers)):
                await everybody_asks(1)
            await everybody_asks(CALLS)
            alone = sum(map(is_decided_locally, servers))
            assert alone >= SERVERS * TENANTS * CALLS
        finally:
            victim.send(signal.SIGCONT)
        for node in cluster.nodes:
            # The shard first runs what it received while it was stopped. That is done when it answers
            # the first of two commands.
            await asyncio.to_thread(node.client.ping)
            await asyncio.to_thread(node.client.config_resetstat)
        await eventually(lambda: not any(map(is_missing, servers)))
        await everybody_asks(CALLS)
        assert {server.admission.mode for server in servers} == {Mode.SHARED}
        # One question of each domain, one that gathered behind it, one that tells what was decided
        # alone: for a thousand calls. Nobody sends a script's text, for who connects loads them first.
        assert counted(cluster, "evalsha") <= SERVERS * TENANTS * 4
        assert counted(cluster, "eval") == 0

        def is_told(server: Server) -> bool:
            return not server.admission.redis_fallback.limits.offline.changed

        await eventually(lambda: all(map(is_told, servers)))
    await asyncio.to_thread(cluster.settle)


def test_a_lock_is_on_the_shard_of_its_name(cluster: Cluster):
    cluster.settle()
    with blocking.Agent(settings=AgentSettings(redis_url=cluster.url, server="locker")) as agent:
        for number in range(12):
            with agent.lock(f"report-{number}") as lock:
                with pytest.raises(LockTaken), agent.lock(f"report-{number}", wait_s=0):
                    pytest.fail("entered")
                lock.check()
