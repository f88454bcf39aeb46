"""Writes to Redis what the control plane would publish."""

from collections.abc import Callable

import redis

from fuseboard import Agent, Mode, blocking
from fuseboard.contract import keys
from fuseboard.contract.policy import ConfigHead, Policy, TenantRecord, encode_policy, encode_tenant, hash_of
from fuseboard.contract.sync import Nudge, encode

ENVIRONMENT = "production"


def publish(
    limits: redis.Redis,
    policy: Policy | bytes,
    *,
    revision: int,
    epoch: int = 1,
    tenants: dict[str, TenantRecord | bytes | None] | None = None,
    since: int | None = None,
    listed: tuple[str, ...] | None = (),
    digest: str | None = None,
    nudge: bool = True,
) -> ConfigHead:
    """Head, policy and records in one transaction, then the nudge, as the publisher's script does."""
    document = policy if isinstance(policy, bytes) else encode_policy(policy)
    head = ConfigHead(epoch=epoch, revision=revision, hash=digest or hash_of(document))
    pipe = limits.pipeline(transaction=True)
    pipe.hset(
        keys.config_head(ENVIRONMENT),
        mapping={"epoch": epoch, "revision": revision, "hash": head.hash, "policy": document},
    )
    for tenant, record in (tenants or {}).items():
        bucket = keys.tenant_bucket(ENVIRONMENT, keys.tenant_bucket_number(tenant))
        if record is None:
            pipe.hdel(bucket, tenant)
        else:
            pipe.hset(bucket, tenant, record if isinstance(record, bytes) else encode_tenant(record))
    if nudge:
        message = Nudge(
            epoch=epoch, revision=revision, since=revision - 1 if since is None else since, tenants=listed
        )
        pipe.publish(keys.config_channel(ENVIRONMENT), encode(message))
    pipe.execute()
    return head


def decides_by(agent: Agent | blocking.Agent, revision: int) -> Callable[[], bool]:
    """Look whether Redis decides, by this revision. The start of an agent waits half a second for both, which
    a busy machine exceeds.
    """
    return lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == revision
