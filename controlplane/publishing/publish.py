"""Postgres -> Redis, state-based: whatever happened before, the newest state is what is written.

1. Read the head Redis has.
2. Read the newest configuration from Postgres, and the tenants changed since that head.
3. Write it, provided the head is still the one that was read; otherwise begin again.

So publishers may run at once, die half way, and come late: older never overwrites newer.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
import structlog
from django.db import InterfaceError, OperationalError, connection
from django.db.models import Q
from django.db.models.functions import Now
from prometheus_client import Counter

from controlplane.publishing.models import Ahead, OutboxEntry
from controlplane.publishing.snapshot import Snapshot, encode_tenants, take_snapshot
from controlplane.redis.scripts import PATIENT_S, PROMPT_S, Script, limits
from fuseboard.contract import keys
from fuseboard.contract.policy import ConfigHead, hash_of
from fuseboard.contract.sync import Nudge, encode

log = structlog.get_logger(__name__)

PUBLISH_CONFIG = Script(Path(__file__).parent / "lua" / "publish_config.lua")

#: Another publisher wins at most a few times in a row: it brings Redis to where we want it.
ATTEMPTS = 10
#: Tenants written by one call: about 1.5 ms, well below what a decision waits for Redis.
TENANTS_PER_CALL = 500
#: Tenants named in a nudge; with more of them, pods ask for those they serve.
TENANTS_PER_NUDGE = 200

_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)

failures = Counter("fuseboard_publish_failures_total", "Publications that were left to the sweep.")
published = Counter("fuseboard_published_total", "Configurations written to Redis.")


#: The condition is Postgres' own: whoever asks may have read an older moment.
NOTE_AHEAD = """
    INSERT INTO publishing_ahead (environment, epoch, revision, who)
    SELECT slug, %s, %s, %s FROM policies_environment WHERE slug = %s AND (epoch, revision) < (%s, %s)
    ON CONFLICT (environment) DO UPDATE
    SET epoch = EXCLUDED.epoch, revision = EXCLUDED.revision, who = EXCLUDED.who, at = now()
    WHERE (publishing_ahead.epoch, publishing_ahead.revision) < (EXCLUDED.epoch, EXCLUDED.revision)
"""


class PublishError(Exception):
    """The configuration in Redis is not the newest."""


def publish_head(environment: str, *, deadline_s: float = PROMPT_S) -> ConfigHead:
    """Bring Redis to the newest configuration and return its head; does nothing when it is there.

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
    """Write everything once more, over whatever Redis has of this or an older revision.

    Raises as ``publish_head`` does.
    """
    store = limits(deadline_s=PATIENT_S)
    for _ in range(ATTEMPTS):
        head = publish_head(environment, deadline_s=PATIENT_S)
        snapshot = take_snapshot(environment, since=None)
        if snapshot.head == head and _write(store, environment, head, snapshot):
            return head
    raise PublishError(f"{ATTEMPTS} other publishers of {environment} were faster")


def publish_promptly(environment: str) -> None:
    """After a commit: publish at once if Redis answers at once. The sweep does it otherwise."""
    try:
        publish_head(environment)
    except (redis.RedisError, OperationalError, InterfaceError, PublishError) as error:
        failures.inc()
        log.warning("policy.publish_left_to_sweep", environment=environment, error=str(error))


def read_head(store: redis.Redis, environment: str) -> ConfigHead | None:
    """The head in Redis; ``None`` when there is none. The hash is empty when the policy is damaged."""
    try:
        fields: list[Any] = store.hmget(keys.config_head(environment), "epoch", "revision", "hash", "policy")
    except redis.ResponseError:  # the key is no hash
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
        # A reset is done when the breaker is closed, see controlplane.breakers.enforce.
        reset="",
    ).update(published_at=Now())


def write_buckets(store: redis.Redis, environment: str, snapshot: Snapshot, buckets: list[int]) -> bool:
    """Write these buckets as the snapshot has them, over the same head; ``False`` when that moved on."""
    chosen = set(buckets)
    tenants = {
        name: record for name, record in snapshot.tenants.items() if keys.tenant_bucket_number(name) in chosen
    }
    return _write(store, environment, snapshot.head, replace(snapshot, tenants=tenants), buckets)


def _note(environment: str, seen: ConfigHead) -> None:
    with connection.cursor() as cursor:
        known = [seen.epoch, seen.revision]
        cursor.execute(NOTE_AHEAD, [*known, "Redis", environment, *known])


def _refuse_after_restore(environment: str, head: ConfigHead) -> None:
    ahead = Ahead.objects.filter(environment=environment, epoch__gte=head.epoch).first()
    if ahead is not None:
        raise PublishError(
            f"{ahead.who} knows {ahead.epoch}.{ahead.revision} of {environment}, which this database never"
            f" made: it was restored, and is at {head.epoch}.{head.revision}. Nothing is published until you"
            f" run `manage.py republish {environment} --new-epoch --reason ...`."
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
    """Whether it was written; ``False`` when the head in Redis is no longer ``seen``.

    The buckets ``whole`` hold exactly what the snapshot has for them afterwards.
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
        # A complete configuration also empties the buckets that have no tenant any more.
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
    """Keys and arguments of each call: buckets with about ``TENANTS_PER_CALL`` tenants at a time."""
    encoded = encode_tenants(snapshot)
    replaced = set(whole)
    plain: dict[int, list[str | bytes]] = {number: [] for number in whole}
    own: dict[int, list[str | bytes]] = {number: [] for number in whole}
    for tenant, record in snapshot.tenants.items():
        number = keys.tenant_bucket_number(tenant)
        has_own = record is not None and bool(record.quotas or record.parents)
        for buckets, here in ((plain, record is not None and not has_own), (own, has_own)):
            if here:
                buckets.setdefault(number, []).extend((tenant, encoded[tenant]))
            elif number not in replaced:
                buckets.setdefault(number, []).extend((tenant, b""))
    names: list[str] = []
    args: list[str | bytes | int] = []
    for number in sorted(plain):
        for key, records in (
            (keys.tenant_bucket(environment, number), plain[number]),
            (keys.own_bucket(environment, number), own[number]),
        ):
            names.append(key)
            args += [int(number in replaced), len(records) // 2]
            args += records
        if len(args) >= 2 * TENANTS_PER_CALL:
            yield names, args
            names, args = [], []
    if names:
        yield names, args
