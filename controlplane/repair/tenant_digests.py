"""Whether Redis holds exactly the right tenants: one digest per bucket is compared and repaired.

The head says which configuration Redis was given. It does not show that every record is still
there: a key may have been deleted, or a failover may have lost a recent write.
"""

from hashlib import sha1
from pathlib import Path

import structlog

from controlplane.audit.actor import FUSEBOARD
from controlplane.editing.revise import revise
from controlplane.policies.models import Tenant
from controlplane.publishing.publish import read_head, write_buckets
from controlplane.publishing.snapshot import Snapshot, encode_tenants, is_in_own_bucket, take_snapshot
from controlplane.redis.scripts import PATIENT_S, Script, limits
from fuseboard.contract import keys

log = structlog.get_logger(__name__)

DIGEST_TENANTS = Script(Path(__file__).parent / "lua" / "digest_tenants.lua")

#: Buckets read by one call: with 100,000 tenants about 2 ms of Redis.
_BUCKETS_PER_CALL = 16

_LANE = 2**48


def reconcile_tenants(environment: str) -> list[int]:
    """Compare every bucket and rewrite those that differ; return their numbers.

    Skips a round while an edit is being published. Raises ``redis.RedisError``.
    """
    store = limits(deadline_s=PATIENT_S)
    snapshot = take_snapshot(environment, since=None)
    if read_head(store, environment) != snapshot.head:
        return []
    moment = [str(snapshot.head.epoch), str(snapshot.head.revision)]
    expected = _digests(snapshot)
    different: list[int] = []
    for start in range(0, keys.TENANT_BUCKETS, _BUCKETS_PER_CALL):
        numbers = range(start, min(start + _BUCKETS_PER_CALL, keys.TENANT_BUCKETS))
        names = [
            key(environment, number) for number in numbers for key in (keys.tenant_bucket, keys.own_bucket)
        ]
        epoch, revision, *found = DIGEST_TENANTS.run(
            store, keys=[keys.config_head(environment), *names], args=[]
        )
        if [epoch, revision] != moment:
            return []
        pairs = zip(numbers, found[::2], found[1::2], strict=True)
        different += [number for number, *digests in pairs if digests != expected[number]]
    if different and write_buckets(store, environment, snapshot, different):
        log.warning("policy.tenants_repaired", environment=environment, buckets=len(different))
        _publish_again(environment, different)
    return different


def _digests(snapshot: Snapshot) -> list[list[str]]:
    """Return the two digests of each bucket number, as ``digest_tenants.lua`` computes them."""
    sums = [[[0, 0, 0], [0, 0, 0]] for _ in range(keys.TENANT_BUCKETS)]
    for tenant, text in encode_tenants(snapshot).items():
        record = snapshot.tenants[tenant]
        here = sums[keys.tenant_bucket_number(tenant)][record is not None and is_in_own_bucket(record)]
        digest = sha1(b"%b\0%b" % (tenant.encode(), text), usedforsecurity=False).digest()
        here[0] += 1
        here[1] += int.from_bytes(digest[:6])
        here[2] += int.from_bytes(digest[6:12])
    return [[f"{count} {a % _LANE} {b % _LANE}" for count, a, b in pair] for pair in sums]


def _publish_again(environment: str, buckets: list[int]) -> None:
    """Make pods read these tenants again. The records they have may be wrong."""
    damaged = set(buckets)
    names = Tenant.objects.filter(environment=environment).values_list("key", flat=True)
    chosen = [name for name in names.iterator() if keys.tenant_bucket_number(name) in damaged]
    reason = "Redis had other records of these tenants"
    with revise(environment=environment, actor=FUSEBOARD, reason=reason, needs_approval=False) as revision:
        Tenant.objects.filter(environment=environment, key__in=chosen).update(
            changed_revision=revision.number
        )
        revision.audit(
            "policy.tenants_repaired",
            target_kind="environment",
            target_name=environment,
            before=None,
            after={"buckets": len(buckets), "tenants": len(chosen)},
        )
