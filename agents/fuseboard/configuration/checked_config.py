"""A configuration from outside, checked whole before anything is changed.

Pure, so it may run in any thread. ``current_configuration`` applies a checked offer in one step.
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from fuseboard.contract.limits import PolicyError
from fuseboard.contract.policy import (
    ConfigHead,
    Policy,
    TenantRecord,
    decode_policy,
    decode_tenant,
    encode_tenant,
    hash_of,
)
from fuseboard.contract.portable import Portable
from fuseboard.contract.words import ConfigSource, is_subject

#: A larger document is refused before it is parsed.
MAX_DOCUMENT_BYTES = 8 * 1024 * 1024


class ConfigError(Portable, ValueError):
    """An offered configuration is invalid. The message says why, for the next heartbeat."""

    def __init__(self, message: str, *, poisoned: bool) -> None:
        super().__init__(message[:500])
        #: The document itself is bad: the same hash need not be tried again. A torn document (its bytes do
        #: not match its hash) may arrive whole the next time.
        self.poisoned = poisoned


class CheckedConfig(Struct, frozen=True, kw_only=True):
    """A checked configuration."""

    head: ConfigHead
    source: ConfigSource
    #: ``None``: the current policy belongs to this head.
    policy: Policy | None
    document: bytes
    tenants: Mapping[str, TenantRecord | None]
    #: ``tenants`` contains every kept tenant that changed up to this head.
    complete: bool = True


def check_config(
    *,
    environment: str,
    head: ConfigHead,
    document: bytes,
    tenants: Mapping[str, TenantRecord | None],
    source: ConfigSource,
    complete: bool = True,
) -> CheckedConfig:
    """Check a configuration. Raises ``ConfigError``; never returns half of one.

    ``tenants`` are records that ``decode_tenant`` or ``check_tenants`` has checked already.
    """
    if head.epoch < 0 or head.revision < 0:
        raise ConfigError(f"head: negative ({head.epoch}, {head.revision})", poisoned=True)
    return CheckedConfig(
        head=head,
        source=source,
        policy=_read_policy(environment, head, document) if document else None,
        document=document,
        tenants=tenants,
        complete=complete,
    )


def _read_policy(environment: str, head: ConfigHead, document: bytes) -> Policy:
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ConfigError(f"policy: {len(document)} bytes, more than {MAX_DOCUMENT_BYTES}", poisoned=False)
    if (found := hash_of(document)) != head.hash:
        raise ConfigError(f"policy: torn, its hash is {found} and not {head.hash}", poisoned=False)
    try:
        policy = decode_policy(document)
    except (msgspec.DecodeError, PolicyError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"policy: {error}", poisoned=True) from error
    if policy.environment != environment:
        raise ConfigError(f"policy: made for environment {policy.environment!r}", poisoned=True)
    return policy


def check_tenants(tenants: Mapping[str, TenantRecord | None]) -> Mapping[str, TenantRecord | None]:
    """Check records that were decoded as part of a larger document. Raises ``ConfigError``."""
    for tenant, record in tenants.items():
        if not is_subject(tenant):
            raise ConfigError("tenants: an invalid tenant id", poisoned=False)
        if record is not None:
            try:
                decode_tenant(encode_tenant(record))
            except (msgspec.DecodeError, PolicyError) as error:
                raise ConfigError(f"tenants.{tenant}: {error}", poisoned=False) from error
    return tenants
