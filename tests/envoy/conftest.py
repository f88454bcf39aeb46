"""Rate limit services with a real agent and a real Redis."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard import AgentSettings
from fuseboard.contract.descriptor_file import read_file
from fuseboard.contract.descriptors import DescriptorDomain
from fuseboard.contract.policy import Policy
from tests.agents.published import decides_by, publish
from tests.agents.servers import PATIENT, POLICY, TENANTS
from tests.waiting import eventually


def domain_of(text: str) -> DescriptorDomain:
    """The rules of a file."""
    file = read_file(text)
    assert file.domain is not None, file.problems
    return file.domain


def policy_of(
    *files: str, domains: Iterable[DescriptorDomain] = (), policy: Policy = POLICY, **changes: Any
) -> Policy:
    """``policy`` with the rules of these files. Its pods stay in contact with Redis on a busy machine."""
    descriptors = (*map(domain_of, files), *domains)
    return replace(policy, descriptors=descriptors, tuning=PATIENT, **changes)


class Envoy:
    """A sidecar with a rate limit service, and a filter that asks it."""

    def __init__(self, running: Any, path: str, limits: redis.Redis) -> None:
        self.running, self.path, self.limits = running, path, limits
        self.agent, self.sidecar, self.service = running.agent, running.sidecar, running.envoy
        self.log = running.access_log

    async def ask(self, body: bytes) -> Any:
        """The answer of the service, without a listener."""
        from fuseboard.envoy import rls_pb2 as pb

        return pb.RateLimitResponse.FromString((await self.service.answer(body)).body)


Answering = Callable[..., AbstractAsyncContextManager[Envoy]]


@pytest.fixture
def answering(limits: redis.Redis, redis_url: str, tmp_path: Path) -> Answering:
    """Publishes a policy, and starts a sidecar with a rate limit service that has it.

    ``client`` and ``url`` are those of another Redis.
    """

    @asynccontextmanager
    async def start(
        policy: Policy, *, client: redis.Redis = limits, url: str = redis_url, **options: Any
    ) -> AsyncIterator[Envoy]:
        # Only these tests need httptools and protobuf.
        from fuseboard.sidecar.app import Options, running

        publish(client, policy, revision=7, tenants=dict(TENANTS))
        settings = AgentSettings(redis_url=url, server="edge-1", state_dir=tmp_path / "state")
        path = str(tmp_path / "envoy.sock")
        async with running(settings, Options(listen=None, envoy_unix=path, **options)) as started:
            await eventually(decides_by(started.agent, 7))
            yield Envoy(started, path, client)

    return start
