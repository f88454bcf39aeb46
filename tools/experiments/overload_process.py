"""A pod of FastAPI on uvicorn in a process of its own, and more requests than it can serve, over loopback."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Dependency, Policy, TenantRecord, Tier
from fuseboard.contract.protection import CallProtection, PodProtection, Shedding
from tests.agents.guarded_pods import PRESET
from tests.agents.published import publish
from tools.experiments.overload_pod import NAME, READY, SERVICE_S
from tools.experiments.traffic import Call, arrive

PROJECT = Path(__file__).resolve().parents[2]
SECONDS, WARM_S, PROBE_S = 30.0, 8.0, 0.5
#: After this time a client has left, so an answer is worth nothing.
PATIENCE_S = 5.0


def overloaded_process(
    shedding: Shedding, slots: int, tiers: Mapping[str, int]
) -> tuple[list[Call], float, float, float, float]:
    """The requests, the slowest liveness probe, the capacity per second, and the seconds: all and warming."""
    bulkhead = msgspec.structs.replace(PRESET, max_concurrent=slots)
    policy = Policy(
        environment="production",
        default_tier=next(iter(tiers)),
        tiers=tuple(Tier(name=name, priority=priority) for name, priority in tiers.items()),
        dependencies=(Dependency(name=NAME, protection=CallProtection(bulkhead=bulkhead)),),
        protection=PodProtection(shedding=shedding),
    )
    capacity = slots / SERVICE_S
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder))
        server.start()
        try:
            with redis.Redis.from_url(server.url) as client:
                records = {f"{name}-shop": TenantRecord(tier=name) for name in tiers}
                publish(client, policy, revision=1, tenants=records)
            with _pod(server.url, folder) as port:
                calls, slowest_s = asyncio.run(_load(port, tiers, 3 * capacity))
        finally:
            server.stop()
    return calls, slowest_s, capacity, SECONDS, WARM_S


@contextmanager
def _pod(redis_url: str, folder: str) -> Iterator[int]:
    """The port of the pod."""
    pod = subprocess.Popen(
        [sys.executable, "-m", "tools.experiments.overload_pod", redis_url, folder],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert pod.stdout is not None
        yield next(int(said.split()[1]) for said in pod.stdout if said.startswith(READY))
    finally:
        pod.terminate()
        pod.wait(30)


async def _load(port: int, tiers: Mapping[str, int], per_s: float) -> tuple[list[Call], float]:
    names = {priority: name for name, priority in tiers.items()}
    loop, probes = asyncio.get_running_loop(), list[float]()

    async def serve(call: Call) -> None:
        status = await _get(port, "/order", f"{names[call.level]}-shop")
        call.outcome = "served" if status == 200 else str(status)

    async def probe() -> None:
        while True:
            await asyncio.sleep(PROBE_S)
            begun = loop.time()
            await _get(port, "/healthz", "")
            probes.append(loop.time() - begun)

    for name in tiers:  # its record is at the pod now
        await _get(port, "/order", f"{name}-shop")
    probing = asyncio.ensure_future(probe())
    levels = tuple(tiers.values())
    calls = await arrive(
        lambda at: per_s, SECONDS, serve, seed=5, level=lambda draw: draw.choice(levels), drain_s=PATIENCE_S
    )
    probing.cancel()
    await asyncio.gather(probing, return_exceptions=True)
    return calls, max(probes)


async def _get(port: int, path: str, tenant: str) -> int:
    """The status of the answer; 0 if there is none in time."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"GET {path} HTTP/1.1\r\nHost: pod\r\nConnection: close\r\nX-Tenant: {tenant}\r\n\r\n"
            writer.write(head.encode())
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
    except (TimeoutError, OSError):
        return 0
    finally:
        if writer is not None:
            writer.close()
