"""The configuration as a pod on this host would find it now: in Redis, or on disk."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import msgspec

from fuseboard.configuration.checked_config import (
    CheckedConfig,
    ConfigError,
    check_config,
)
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.disk import Disk, DiskError
from fuseboard.configuration.redis_copy import StoredConfig, read_configuration
from fuseboard.configuration.redis_source import FAILURES, RedisSource
from fuseboard.configuration.server_clock import ServerClock
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.policy import Policy
from fuseboard.contract.words import ConfigSource
from fuseboard.errors import Misconfigured
from fuseboard.settings import AgentSettings
from fuseboard.store.off_store import REDIS_IS_OFF


@dataclass(frozen=True)
class FoundConfiguration:
    environment: str
    offer: CheckedConfig
    policy: Policy
    #: Server time.
    clock: ServerClock
    notes: tuple[str, ...] = ()
    #: How many pods divide a local share, as a pod on this host last heard; 0 when unknown.
    live_servers: int = 0

    @cached_property
    def snapshot(self) -> Snapshot:
        configuration = Configuration(environment=self.environment, clock=self.clock)
        self.put_into(configuration)
        return configuration.snapshot

    def with_policy(self, policy: Policy) -> Self:
        return dataclasses.replace(self, policy=policy)

    def put_into(self, configuration: Configuration) -> None:
        for tenant in self.offer.tenants:
            configuration.want(tenant)
        configuration.apply(msgspec.structs.replace(self.offer, policy=self.policy))


async def find_configuration(settings: AgentSettings, *, tenant: str = "") -> FoundConfiguration:
    """Raises ``Misconfigured`` when there is no configuration, in Redis or on disk."""
    if settings.off:
        raise Misconfigured(f"{REDIS_IS_OFF}: set it to the address of Redis")
    clock = ServerClock()
    try:
        offer = await _in_redis(settings, tenant, clock)
        problem = "Redis has no configuration yet: nothing was published"
    except (*FAILURES, ConfigError) as error:
        offer, problem = None, f"no configuration from Redis: {error}"
    notes: tuple[str, ...] = ()
    if offer is None:
        offer, notes = _on_disk(settings), (f"{problem}; this is the copy on disk",)
    if offer is None or offer.policy is None:
        raise Misconfigured(f"{problem}, and there is no copy on disk")
    return FoundConfiguration(
        settings.environment, offer, offer.policy, clock, notes, _live_servers(settings)
    )


async def _in_redis(settings: AgentSettings, tenant: str, clock: ServerClock) -> CheckedConfig | None:
    source = RedisSource(url=settings.redis_url, environment=settings.environment)
    try:
        stored = await _read(source, settings, (tenant,) if tenant else (), clock)
        record = stored.tenants.get(tenant) if stored is not None else None
        if record is not None and record.parents:
            stored = await _read(source, settings, (tenant, *record.parents), clock)
    finally:
        await source.close()
    if stored is None:
        return None
    return check_config(
        environment=settings.environment,
        head=stored.head,
        document=stored.document,
        tenants=stored.tenants,
        source=ConfigSource.REDIS,
    )


async def _read(
    source: RedisSource, settings: AgentSettings, tenants: tuple[str, ...], clock: ServerClock
) -> StoredConfig | None:
    return await read_configuration(
        source, settings.environment, tenants=tenants, with_policy=True, clock=clock
    )


def _read_disk(settings: AgentSettings) -> tuple[CheckedConfig | None, int]:
    """The copy on disk, and the live pods that it counts. Raises ``DiskError`` or ``ConfigError``."""
    if settings.state_dir is None:
        return None, 0
    disk = Disk(settings.state_dir, environment=settings.environment, service=settings.service)
    return disk.read() or (None, 0)


def _live_servers(settings: AgentSettings) -> int:
    try:
        return _read_disk(settings)[1]
    except (DiskError, ConfigError):
        return 0


def _on_disk(settings: AgentSettings) -> CheckedConfig | None:
    try:
        return _read_disk(settings)[0]
    except (DiskError, ConfigError) as error:
        raise Misconfigured(f"no configuration: the copy on disk is unusable: {error}") from error
