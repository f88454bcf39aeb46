"""Reads the copy of the configuration that the control plane keeps in Redis."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from fuseboard.configuration.checked_config import ConfigError
from fuseboard.configuration.redis_source import RedisSource
from fuseboard.configuration.server_clock import ServerClock
from fuseboard.contract import keys
from fuseboard.contract.limits import PolicyError
from fuseboard.contract.policy import ConfigHead, TenantRecord, decode_tenant

#: Records parsed before other tasks of the loop get a turn.
_PARSED_AT_ONCE = 200

_HEAD = ("epoch", "revision", "hash")


class StoredConfig(Struct, frozen=True, kw_only=True):
    """The content of Redis at one moment: all keys are read in one transaction."""

    head: ConfigHead
    #: The bytes of the policy; empty unless asked for.
    document: bytes
    tenants: dict[str, TenantRecord | None]


async def read_head(source: RedisSource, environment: str) -> ConfigHead | None:
    """The head in Redis; ``None`` when nothing was published, or after a flush."""
    (fields,) = await source.ask(("HMGET", keys.config_head(environment), *_HEAD))
    return _head(_values(fields, len(_HEAD)))


async def read_configuration(
    source: RedisSource, environment: str, *, tenants: Sequence[str], with_policy: bool, clock: ServerClock
) -> StoredConfig | None:
    """Head, policy and records of one moment. Raises ``ConfigError``, or one of ``FAILURES``.

    All keys share one hash tag, and the publisher writes them in one script. So a tenant that is
    missing here is not registered.
    """
    buckets: dict[int, list[str]] = defaultdict(list)
    for tenant in tenants:
        buckets[keys.tenant_bucket_number(tenant)].append(tenant)
    fields = (*_HEAD, "policy") if with_policy else _HEAD
    questions: list[tuple[str, ...]] = [("HMGET", keys.config_head(environment), *fields)]
    for number, names in buckets.items():
        questions.append(("HMGET", keys.tenant_bucket(environment, number), *names))
        questions.append(("HMGET", keys.own_bucket(environment, number), *names))
    asked_ns = time.monotonic_ns()
    *replies, now = await source.transaction(*questions, ("TIME",))
    answered_ns = time.monotonic_ns()
    head_fields, *found = [
        _values(reply, len(question) - 2) for reply, question in zip(replies, questions, strict=True)
    ]
    clock.observe(_microseconds(now), asked_ns=asked_ns, answered_ns=answered_ns)
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


def _values(reply: object, count: int) -> list[bytes | None]:
    """The values of an answer to HMGET."""
    if not isinstance(reply, list) or len(reply) != count:
        raise ConnectionResetError(f"Redis gave an invalid answer: {reply!r:.100}")
    if not all(value is None or isinstance(value, bytes) for value in reply):
        raise ConnectionResetError(f"Redis gave an invalid answer: {reply!r:.100}")
    return reply


def _microseconds(reply: object) -> int:
    match reply:
        case [bytes() as seconds, bytes() as microseconds] if seconds.isdigit() and microseconds.isdigit():
            return int(seconds) * 1_000_000 + int(microseconds)
    raise ConnectionResetError(f"Redis gave an invalid answer to TIME: {reply!r:.100}")


def _head(fields: Sequence[bytes | None]) -> ConfigHead | None:
    epoch, revision, digest = fields[:3]
    if epoch is None or revision is None or digest is None:
        return None
    try:
        return ConfigHead(epoch=int(epoch), revision=int(revision), hash=digest.decode())
    except ValueError as error:
        raise ConfigError(f"head: unreadable in Redis ({error})", poisoned=False) from error
