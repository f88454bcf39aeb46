"""No server answers: a pod starts, decides as before for as long as it runs, and starts again."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuseboard import Agent, AgentSettings
from fuseboard.configuration import server_clock
from fuseboard.configuration.disk import Disk, SavedConfig
from fuseboard.contract.policy import ConfigHead, Limit, Policy, TenantRecord, Tier, encode_policy, hash_of
from fuseboard.contract.shares import ShareLease
from fuseboard.contract.words import ConfigSource, FailurePolicy, Mode
from fuseboard.errors import Refused
from tests.agents.gateways import gateway_running
from tests.agents.servers import POLICY

NOWHERE = "redis://127.0.0.1:1/0"
DAY_S = 86_400.0
#: By failure policy, what 50 requests of a tenant are granted by one of four servers.
GRANTED = {"fail_open": 50, "fail_closed": 0, "local_share": 5, "reserved": 2}


def everything() -> Policy:
    tiers = tuple(
        Tier(
            name=failure_policy.value,
            quotas=(
                Limit(name="requests", limit=20, window_ms=60_000, burst=20, failure_policy=failure_policy),
            ),
        )
        for failure_policy in FailurePolicy
    )
    return msgspec.structs.replace(POLICY, tiers=(*tiers, *POLICY.tiers))


def keep(directory: Path) -> Path:
    """What a pod leaves on its disk."""
    policy = encode_policy(everything())
    disk = Disk(directory, environment="production", service="shop")
    assert disk.write(
        SavedConfig(
            environment="production",
            head=ConfigHead(epoch=1, revision=9, hash=hash_of(policy)),
            policy=msgspec.Raw(policy),
            tenants={word.value: TenantRecord(tier=word.value) for word in FailurePolicy},
            live_servers=4,
        )
    )
    return disk.path


def settings(directory: Path, **given: Any) -> AgentSettings:
    return AgentSettings(
        **{"redis_url": NOWHERE, "service": "shop", "server": "shop-1", "state_dir": directory} | given
    )


async def granted(agent: Agent) -> dict[str, int]:
    """What is decided, of every kind."""
    found = {}
    for tenant in GRANTED:
        decisions = [await agent.admit_request(tenant) for _ in range(50)]
        assert {decision.revision for decision in decisions} == {9}
        found[tenant] = sum(decision.allowed for decision in decisions)
    return found


@contextmanager
def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[None]:
    """So much later, as the agent's clocks have it."""
    with monkeypatch.context() as patched:
        for name, module in list(sys.modules.items()):
            if name.startswith("fuseboard.") and getattr(module, "monotonic", None) is time.monotonic:
                patched.setattr(module, "monotonic", lambda: time.monotonic() + seconds)
        yield


async def test_a_day_without_a_control_plane_changes_no_decision_but_what_was_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keep(tmp_path)
    async with Agent(settings=settings(tmp_path)) as agent:
        assert agent.configuration.applied.source is ConfigSource.DISK
        share, begun = agent._runtime.admission.redis_fallback.share, server_clock.lease_clock()
        share.take(ShareLease(level=0, place=0, terms=1, remaining_ms=900_000), asked=begun)
        assert await granted(agent) == GRANTED
        await agent.admit_call("payments")
        with later(monkeypatch, DAY_S):
            monkeypatch.setattr(share, "clock", lambda: begun + DAY_S)
            assert await granted(agent) == GRANTED | {"reserved": 0}
            assert await granted(agent) == {
                "fail_open": 50,
                "fail_closed": 0,
                "local_share": 0,
                "reserved": 0,
            }
            await agent.admit_call("payments")
            assert agent.configuration.applied.revision == 9


async def test_it_starts_again_from_a_disk_of_last_year_and_has_no_piece_until_one_is_leased(tmp_path: Path):
    path = keep(tmp_path)
    os.utime(path, (0, 0))
    for _ in range(2):
        async with Agent(settings=settings(tmp_path)) as agent:
            assert await granted(agent) == GRANTED | {"reserved": 0}
            assert agent.mode is Mode.LOCAL


async def test_it_is_ready_within_two_seconds_while_every_server_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Agents of other tests wait for longer. This one waits as in an application.
    monkeypatch.undo()
    keep(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent, gateway_running() as gateway:
        gateway.delay_s = 5.0
        took = []
        for _ in range(3):
            began = time.monotonic()
            agent = Agent(
                settings=settings(
                    tmp_path,
                    redis_url=f"redis://127.0.0.1:{silent.getsockname()[1]}/0",
                    url=gateway.url,
                    token="fb_sel_secret",
                )
            )
            await agent.start()
            took.append(time.monotonic() - began)
            assert (await agent.admit_request("fail_open")).revision == 9
            await agent.stop()
        assert min(took) < 2.0, took


async def test_a_disk_that_takes_nothing_costs_nothing_but_a_count(tmp_path: Path):
    in_the_way = tmp_path / "state"
    in_the_way.write_text("a file")
    async with Agent(settings=settings(in_the_way / "below")) as agent:
        assert (await agent.admit_request("acme")).allowed
        try:
            await agent.admit_call("payments")
        except Refused:
            pytest.fail("a full disk refused a call")
