"""Hostile input over every listener of a sidecar: its memory is bounded, and does not grow. ``make soak``."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
import redis

from fuseboard.contract.policy import Limit, Policy, Tier
from fuseboard.contract.words import Algorithm, Dimension
from tests.agents.published import publish
from tests.agents.servers import POLICY, TENANTS
from tests.envoy.conftest import policy_of
from tests.sidecar.hostile import Hostile, tcp, unix
from tests.sidecar.processes import Process, sidecar

SHORT_ACTS = 1_000
SOAK_S = 3_600
#: Caches and permits fill up first.
SETTLED_S, LOOK_S = 1_800, 20
#: What docs/sidecar.md says of the memory of a sidecar that answers an application and Envoy.
MOST_MIB = 128
#: By how much the mean of the last quarter may be above that of the first one: allocators make noise.
NOISE_MIB = 4

SLOTS = Limit(name="at-once", limit=1_000, window_ms=600_000, algorithm=Algorithm.CONCURRENCY)
#: A tenant that Envoy names, a vendor behind its breaker, and a limit for each address.
RULES = """
domain: edge
descriptors:
  - key: tenant
    means: tenant
  - key: vendor
    dependency: payments
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 100}
"""
PER_ADDRESS = Limit(name="address", limit=100, window_ms=60_000, per=(Dimension.IP,))


def policy() -> Policy:
    tiers = (Tier(name="free", quotas=(*POLICY.tiers[0].quotas, SLOTS)), Tier(name="unlimited"))
    return policy_of(RULES, tiers=tiers, subject_limits=(PER_ADDRESS,))


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def pressed(redis_url: str, folder: Path) -> Iterator[tuple[Process, Hostile]]:
    """A sidecar with every listener, and its hostile peers."""
    socket, bridge = str(folder / "sock"), str(folder / "envoy")
    with sidecar(redis_url, folder, "--unix", socket, "--envoy-unix", bridge) as one:
        ports = [int(url.rpartition(":")[2]) for url in (one.url, one.probes)]
        connects = [*map(tcp, ports), unix(socket)]
        yield one, Hostile(connects, token=one.token, of_envoy=unix(bridge))


def decides(one: Process) -> bool:
    return one.post("/v1/calls", '{"dependency": "payments"}')[0] == 200


async def test_hostile_input_leaves_a_sidecar_small_and_able_to_decide(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, policy(), revision=7, tenants=dict(TENANTS))
    with pressed(redis_url, tmp_path) as (one, peers):
        await peers.press(acts=SHORT_ACTS)
        assert peers.done >= SHORT_ACTS
        assert decides(one)
        assert resident_mib(one.process.pid) < MOST_MIB


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 300)
async def test_memory_stays_flat_through_an_hour_of_hostile_input(
    limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, policy(), revision=7, tenants=dict(TENANTS))
    samples = list[float]()
    with pressed(redis_url, tmp_path) as (one, peers):
        begun = monotonic()
        pressing = asyncio.create_task(peers.press(for_s=SOAK_S))
        while not (await asyncio.wait({pressing}, timeout=LOOK_S))[0]:
            samples.append(resident_mib(one.process.pid))
            sys.stdout.write(f"{monotonic() - begun:.0f} s: {peers.done} acts, RSS {samples[-1]:.1f} MiB\n")
            sys.stdout.flush()
        pressing.result()
        assert decides(one)
    settled = samples[SETTLED_S // LOOK_S :]
    quarter = len(settled) // 4
    first, last = sum(settled[:quarter]) / quarter, sum(settled[-quarter:]) / quarter
    assert last < first + NOISE_MIB, (first, last)
    assert max(samples) < MOST_MIB
