"""The configuration as a pod would find it now: in Redis, else on disk."""

from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fuseboard.configuration.clock import ServerClock
from fuseboard.configuration.disk import Disk, DiskError
from fuseboard.configuration.offer import Offer, OfferError, read_offer
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.configuration.source import Source
from fuseboard.configuration.stored import Stored, read_configuration
from fuseboard.contract.words import ConfigSource
from fuseboard.errors import Misconfigured
from fuseboard.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class Known:
    environment: str
    snapshot: Snapshot
    #: Tells the time as the servers count it.
    clock: ServerClock
    notes: tuple[str, ...] = ()
    #: The divisor of local shares, as the pods of this host were told last; 0 when none was.
    live_servers: int = 0


async def learn(settings: AgentSettings, *, tenant: str = "") -> Known:
    """Raises ``Misconfigured`` when no configuration can be found."""
    clock = ServerClock()
    try:
        offer = await _in_redis(settings, tenant, clock)
        trouble = "Redis holds no configuration yet: nothing was published"
    except (RedisError, OSError, TimeoutError, OfferError) as error:
        offer, trouble = None, f"no configuration from Redis: {error}"
    notes: tuple[str, ...] = ()
    if offer is None:
        offer, notes = _on_disk(settings), (f"{trouble}; this is the copy on disk",)
    if offer is None or offer.policy is None:
        raise Misconfigured(f"{trouble}, and there is no copy on disk")
    snapshot = Snapshot(head=offer.head, policy=offer.policy, source=offer.source)
    for name, record in offer.tenants.items():
        snapshot.tenants.put(name, record)
    return Known(settings.environment, snapshot, clock, notes, _servers(settings))


async def _in_redis(settings: AgentSettings, tenant: str, clock: ServerClock) -> Offer | None:
    source = Source(url=settings.redis_url, environment=settings.environment)
    try:
        redis = await source.locate()
        stored = await _read(redis, settings, (tenant,) if tenant else (), clock)
        record = stored.tenants.get(tenant) if stored is not None else None
        if record is not None and record.parents:
            stored = await _read(redis, settings, (tenant, *record.parents), clock)
    finally:
        await source.close()
    if stored is None:
        return None
    return read_offer(
        environment=settings.environment,
        head=stored.head,
        document=stored.document,
        tenants=stored.tenants,
        source=ConfigSource.REDIS,
    )


async def _read(
    redis: Redis, settings: AgentSettings, tenants: tuple[str, ...], clock: ServerClock
) -> Stored | None:
    return await read_configuration(
        redis, settings.environment, tenants=tenants, with_policy=True, clock=clock
    )


def _servers(settings: AgentSettings) -> int:
    if settings.state_dir is None:
        return 0
    disk = Disk(settings.state_dir, environment=settings.environment, service=settings.service)
    try:
        found = disk.read()
    except (DiskError, OfferError):
        return 0
    return found[1] if found is not None else 0


def _on_disk(settings: AgentSettings) -> Offer | None:
    if settings.state_dir is None:
        return None
    try:
        found = Disk(settings.state_dir, environment=settings.environment, service=settings.service).read()
    except (DiskError, OfferError) as error:
        raise Misconfigured(f"no configuration: the copy on disk is unusable: {error}") from error
    return found[0] if found is not None else None
