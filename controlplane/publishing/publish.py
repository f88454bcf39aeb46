"""Postgres -> Redis, state-based: always the newest state is written, whatever happened before.

1. Read the head in Redis.
2. Read the newest configuration from Postgres, and the tenants changed since that head.
3. Write it if the head is still the one that was read. Otherwise start again.

So publishers may run at the same time, die half way or be late: older never overwrites newer.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import redis
import structlog
from django.db import InterfaceError, OperationalError, connection
from django.db.models import Q
from django.db.models.functions import Now

from controlplane.installation import COMMAND
from controlplane.metric_catalogue import edits as catalogue
from controlplane.publishing.models import HISTORY, REDIS, Ahead, OutboxEntry
from controlplane.publishing.snapshot import Snapshot, encode_tenants, is_in_own_bucket, take_snapshot
from controlplane.redis.scripts import PATIENT_S, PROMPT_S, Script, limits
from fuseboard.contract import keys
from fuseboard.contract.policy import ConfigHead, hash_of
from fuseboard.contract.sync import Nudge, encode

log = structlog.get_logger(__name__)

PUBLISH_CONFIG = Script(Path(__file__).parent / "lua" / "publish_config.lua")

#: Another publisher wins at most a few times in a row, because it writes what this one would write.
ATTEMPTS = 10
#: Tenants per call: about 1.5 ms, well below the time a decision waits for Redis.
TENANTS_PER_CALL = 500
#: Tenants named in a nudge. If more changed, pods ask for the tenants they serve.
TENANTS_PER_NUDGE = 200

_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)

failures = catalogue.PUBLISH_FAILURES.make()
published = catalogue.PUBLISHED.make()


#: Postgres checks the condition, because the caller may have read an older moment.
NOTE_AHEAD = f"""
    INSERT INTO publishing_ahead (environment, epoch, revision, who)
    SELECT slug, %s, %s, %s FROM policies_environment WHERE slug = %s AND (epoch, revision) < (%s, %s)
    ON CONFLICT (environment) DO UPDATE
    SET epoch = EXCLUDED.epoch, revision = EXCLUDED.revision, who = EXCLUDED.who, at = now()
    WHERE (publishing_ahead.epoch, publishing_ahead.revision) < (EXCLUDED.epoch, EXCLUDED.revision)
       OR (publishing_ahead.who <> '{REDIS}' AND NOT starts_with(publishing_ahead.who, '{HISTORY}'))
"""  # noqa: S608 - texts of this code


class PublishError(Exception):
    """The configuration in Redis is not the newest."""


def publish_head(environment: str, *, deadline_s: float = PROMPT_S) -> ConfigHead:
    """Write the newest configuration to Redis, unless it is there already, and return its head.

    Raises ``redis.RedisError`` when Redis does not answer within ``deadline_s`` per question, and
    ``PublishError`` when Redis is ahead of Postgres or other publishers were always faster.
    """
    store = limits(deadline_s=deadline_s)
    for _ in range(ATTEMPTS):
        seen = read_head(store, environment)
        snapshot = take_snapshot(environment, since=seen)
        if seen is not None and seen == snapshot.head:
            _refuse_after_restore(environment, snapshot.head)
            mark_published(environment, snapshot.head)
            return snapshot.head
        if seen is not None and _is_ahead(seen, snapshot.head):
            _note(environment, seen)
        _refuse_after_restore(environment, snapshot.head)
        if _write(store, environment, seen, snapshot):
            published.inc()
            log.info(
                "policy.published",
                environment=environment,
                epoch=snapshot.head.epoch,
                revision=snapshot.head.revision,
                tenants=len(snapshot.tenants),
            )
            mark_published(environment, snapshot.head)
            return snapshot.head
    raise PublishError(f"{ATTEMPTS} other publishers of {environment} were faster")


def republish(environment: str) -> ConfigHead:
    """Write everything again, over what Redis has of this or an older revision.

    Raises the same as ``publish_head``.
    """
    store = limits(deadline_s=PATIENT_S)
    for _ in range(ATTEMPTS):
        head = publish_head(environment, deadline_s=PATIENT_S)
        snapshot = take_snapshot(environment, since=None)
        if snapshot.head == head and _write(store, environment, head, snapshot):
            return head
    raise PublishError(f"{ATTEMPTS} other publishers of {environment} were faster")


def refresh(environment: str) -> ConfigHead:
    """Make pods that lag read the newest configuration again, which is in Redis first. Others ignore it.

    Raises the same as ``publish_head``.
    """
    head = publish_head(environment)
    nudge = Nudge(epoch=head.epoch, revision=head.revision, since=0, tenants=None)
    limits(deadline_s=PROMPT_S).publish(keys.config_channel(environment), encode(nudge))
    return head


def publish_promptly(environment: str) -> None:
    """Publish right after a commit if Redis answers promptly. If not, the sweep publishes."""
    try:
        publish_head(environment)
    except (redis.RedisError, OperationalError, InterfaceError, PublishError) as error:
        failures.inc()
        log.warning("policy.publish_left_to_sweep", environment=environment, error=str(error))


def read_head(store: redis.Redis, environment: str) -> ConfigHead | None:
    """Return the head in Redis, or ``None``. Its hash is empty when the policy is damaged."""
    try:
        fields: list[Any] = store.hmget(keys.config_head(environment), "epoch", "revision", "hash", "policy")
    except redis.ResponseError:  # the key is not a hash
        return None
    epoch, revision, digest, policy = fields
    if not (epoch and revision and _NUMBER.fullmatch(epoch) and _NUMBER.fullmatch(revision)):
        return None
    intact = digest is not None and policy is not None and hash_of(policy.encode(errors="replace")) == digest
    return ConfigHead(epoch=int(epoch), revision=int(revision), hash=digest if intact and digest else "")


def mark_published(environment: str, head: ConfigHead) -> None:
    OutboxEntry.objects.filter(
        Q(epoch__lt=head.epoch) | Q(epoch=head.epoch, revision__lte=head.revision),
        environment=environment,
        published_at__isnull=True,
        # An entry with a reset is done when the breaker is closed, see controlplane.breakers.enforce.
        reset="",
    ).update(published_at=Now())


def write_buckets(store: redis.Redis, environment: str, snapshot: Snapshot, buckets: list[int]) -> bool:
    """Write these buckets from the snapshot. Return ``False`` when the head has changed since."""
    chosen = set(buckets)
    tenants = {
        name: record for name, record in snapshot.tenants.items() if keys.tenant_bucket_number(name) in chosen
    }
    return _write(store, environment, snapshot.head, replace(snapshot, tenants=tenants), buckets)


def _note(environment: str, seen: ConfigHead) -> None:
    with connection.cursor() as cursor:
        known = [seen.epoch, seen.revision]
        cursor.execute(NOTE_AHEAD, [*known, REDIS, environment, *known])


def _refuse_after_restore(environment: str, head: ConfigHead) -> None:
    ahead = Ahead.objects.of(environment).filter(epoch__gte=head.epoch).first()
    if ahead is not None:
        raise PublishError(
            f"{ahead.who} has revision {ahead.epoch}.{ahead.revision} of {environment}, which this database"
            f" never made: it was restored, and is at {head.epoch}.{head.revision}. Nothing is published"
            f" until you run `{COMMAND} republish {environment} --new-epoch --reason ...`."
        )


def _is_ahead(seen: ConfigHead, head: ConfigHead) -> bool:
    return (seen.epoch, seen.revision) > (head.epoch, head.revision)


def _write(
    store: redis.Redis,
    environment: str,
    seen: ConfigHead | None,
    snapshot: Snapshot,
    whole: Sequence[int] | None = None,
) -> bool:
    """Write the snapshot. Return ``False`` when the head in Redis is no longer ``seen``.

    The buckets in ``whole`` are replaced. In the others only the snapshot's tenants change.
    """
    head = snapshot.head
    versions = [seen.epoch if seen else 0, seen.revision if seen else 0, head.epoch, head.revision]
    names = sorted(snapshot.tenants)
    nudge = Nudge(
        epoch=head.epoch,
        revision=head.revision,
        since=seen.revision if seen and not snapshot.complete else 0,
        tenants=None if snapshot.complete or len(names) > TENANTS_PER_NUDGE else tuple(names),
    )
    last = [head.hash, snapshot.policy, keys.config_channel(environment), encode(nudge)]
    if whole is None:
        # A complete configuration also empties the buckets that no longer have a tenant.
        whole = range(keys.TENANT_BUCKETS) if snapshot.complete else ()
    parts = list(_parts(environment, snapshot, whole)) or [([], [])]
    for number, (buckets, args) in enumerate(parts, start=1):
        ending = last if number == len(parts) else ["", "", "", ""]
        if not PUBLISH_CONFIG.run(
            store, keys=[keys.config_head(environment), *buckets], args=[*versions, *ending, *args]
        ):
            return False
    return True


def _parts(
    environment: str, snapshot: Snapshot, whole: Sequence[int]
) -> Iterator[tuple[list[str], list[str | bytes | int]]]:
    """Yield keys and arguments of each call, with whole buckets of about ``TENANTS_PER_CALL`` tenants."""
    replaced = set(whole)
    names: list[str] = []
    args: list[str | bytes | int] = []
    for number, bucket in sorted(_buckets(snapshot, replaced).items()):
        for key, records in (
            (keys.tenant_bucket(environment, number), bucket.plain),
            (keys.own_bucket(environment, number), bucket.own),
        ):
            names.append(key)
            args += [int(number in replaced), len(records) // 2, *records]
        if len(args) >= 2 * TENANTS_PER_CALL:
            yield names, args
            names, args = [], []
    if names:
        yield names, args


@dataclass
class _Bucket:
    """Changes of the two hashes of one bucket number: tenant, record, tenant, record and so on."""

    plain: list[str | bytes] = field(default_factory=list)
    own: list[str | bytes] = field(default_factory=list)


#: Removes a tenant from a hash.
_NO_RECORD = b""


def _buckets(snapshot: Snapshot, replaced: Collection[int]) -> dict[int, _Bucket]:
    """Return bucket number -> its changes. A tenant is written to one hash and removed from the other."""
    encoded = encode_tenants(snapshot)
    found = {number: _Bucket() for number in replaced}
    for tenant, record in snapshot.tenants.items():
        number = keys.tenant_bucket_number(tenant)
        bucket = found.setdefault(number, _Bucket())
        here = None
        if record is not None:
            here = bucket.own if is_in_own_bucket(record) else bucket.plain
            here += (tenant, encoded[tenant])
        if number not in replaced:
            for records in (bucket.plain, bucket.own):
                if records is not here:
                    records += (tenant, _NO_RECORD)
    return found
