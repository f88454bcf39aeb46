"""Puts the pod of a running agent under a pressure that the test chooses."""

import asyncio
import threading
from time import monotonic

from fuseboard import Agent, blocking
from fuseboard.contract.policy import Policy, TenantRecord, Tier
from fuseboard.contract.protection import PodProtection, Readiness, Route, Shedding
from fuseboard.protection.cgroup import ResourceReader, Usage
from fuseboard.protection.pod import Pod
from fuseboard.protection.pressure import PressureGauge
from fuseboard.protection.signals import LoopLag
from tests.agents.servers import POLICY

#: Three tiers without limits. A tenant without a record is of the middle one.
TIERED = Policy(
    environment=POLICY.environment,
    default_tier="pro",
    tiers=(
        Tier(name="free", priority=10),
        Tier(name="pro", priority=50),
        Tier(name="premium", priority=90),
    ),
    protection=PodProtection(
        shedding=Shedding(),
        readiness=Readiness(hold_ms=1_000),
        routes=(Route(pattern="GET /orders/*", sla_ms=500),),
    ),
    tuning=POLICY.tuning,
)
TENANTS = {tier.name: TenantRecord(tier=tier.name) for tier in TIERED.tiers}

SOME, ALMOST_ALL, NONE = 0.89, 0.94, 0.1


class _Fixed(ResourceReader):
    def __init__(self, cpu: float) -> None:
        self._usage = Usage(cpu=cpu)

    def read(self, now: float) -> Usage:
        return self._usage

    def close(self) -> None:
        return


def press(agent: Agent | blocking.Agent, cpu: float, *, seconds: int = 3) -> None:
    """Its CPU has been at ``cpu`` for some seconds, and nothing else is a pressure.

    Its timer never runs again: otherwise it would measure the machine that runs the tests.
    """
    pod = pod_of(agent)
    running = agent._agent if isinstance(agent, blocking.Agent) else agent
    assert running is not None
    if running._here():
        _press(pod, cpu, seconds)
        return
    done = threading.Event()

    def now() -> None:
        _press(pod, cpu, seconds)
        done.set()

    running.soon(now)
    assert done.wait(30)


def pod_of(agent: Agent | blocking.Agent) -> Pod:
    running = agent._agent if isinstance(agent, blocking.Agent) else agent
    assert running is not None
    pod = running._runtime.inbound.pod
    assert pod is not None
    return pod


def _never(loop: asyncio.AbstractEventLoop) -> None:
    """Do not start."""


def _press(pod: Pod, cpu: float, seconds: int) -> None:
    pod.stop()
    pod.start = _never  # type: ignore[method-assign]
    pod._resources = _Fixed(cpu)
    # What a busy machine has added before.
    pod.lag, pod._gauge = LoopLag(), PressureGauge()
    now = max(monotonic(), pod._ticked or 0.0)
    for _ in range(seconds + 1):
        now += 1.0
        pod.tick(now)
