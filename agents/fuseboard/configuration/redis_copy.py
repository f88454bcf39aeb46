"""Reads the copy of the configuration that the control plane keeps in Redis."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from redis.asyncio import Redis

from fuseboard.configuration.checked_config import ConfigError
from fuseboard.configuration.server_clock import ServerClock
from fuseboard.contract import keys
from fuseboard.contract.policy import ConfigHead, PolicyError, TenantRecord, decode_tenant

#: Records parsed before other tasks of the loop get a turn.
_PARSED_AT_ONCE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConfig:
    """The content of Redis at one moment: all keys are read in one transaction."""

    head: ConfigHead
    #: The bytes of the policy; empty unless asked for.
    document: bytes
    tenants: dict[str, TenantRecord | None]


async def read_head(redis: Redis, environment: str) -> ConfigHead | None:
    """The head in Redis; ``None`` when nothing was published, or after a flush."""
    key = keys.config_head(environment)
    return _head(await redis.hmget(key, ["epoch", "revision", "hash"]))


async def read_configuration(
    redis: Redis, environment: str, *, tenants: Sequence[str], with_policy: bool, clock: ServerClock
) -> StoredConfig | None:
    """Head, policy and records of one moment. Raises ``RedisError``, ``OSError`` or ``ConfigError``.

    All keys share one hash tag, and the publisher writes them in one script. So a tenant that is
    missing here is not registered.
    """
    buckets: dict[int, list[str]] = defaultdict(list)
    for tenant in tenants:
        buckets[keys.tenant_bucket_number(tenant)].append(tenant)
    fields = ["epoch", "revision", "hash", *(["policy"] if with_policy else [])]
    pipe = redis.pipeline(transaction=True)
    pipe.hmget(keys.config_head(environment), fields)
    for number, names in buckets.items():
        pipe.hmget(keys.tenant_bucket(environment, number), names)
        pipe.hmget(keys.own_bucket(environment, number), names)
    pipe.time()
    asked_ns = time.monotonic_ns()
    head_fields, *found, (seconds, microseconds) = await pipe.execute()
    clock.observe(seconds * 1_000_000 + microseconds, asked_ns=asked_ns, answered_ns=time.monotonic_ns())
    head = _head(head_fields)
    if head is None:
        return None
    pairs = [
        (name, own or plain)
        for names, plains, owns in zip(buckets.values(), found[::2], found[1::2], strict=True)
        for name, plain, own in zip(names, plains, owns, strict=True)
    ]
    document = (head_fields[3] or b"") if with_policy else b""
    return StoredConfig(head=head, document=document, tenants=await _records(pairs))


async def _records(pairs: list[tuple[str, bytes | None]]) -> dict[str, TenantRecord | None]:
    records: dict[str, TenantRecord | None] = {}
    for count, (tenant, text) in enumerate(pairs, start=1):
        try:
            records[tenant] = decode_tenant(text) if text is not None else None
        except (msgspec.DecodeError, PolicyError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"tenants.{tenant}: {error}", poisoned=False) from error
        if count % _PARSED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return records


def _head(fields: Sequence[bytes | str | None]) -> ConfigHead | None:
    epoch, revision, digest = fields[:3]
    if epoch is None or revision is None or digest is None:
        return None
    try:
        text = digest.decode() if isinstance(digest, bytes) else digest
        return ConfigHead(epoch=int(epoch), revision=int(revision), hash=text)
    except ValueError as error:
        raise ConfigError(f"head: unreadable in Redis ({error})", poisoned=False) from error
