from dataclasses import dataclass

from django.db import connection, transaction

from controlplane.policies.document import environment_of, policy_of, tenant_records
from fuseboard.contract.policy import (
    ConfigHead,
    TenantRecord,
    decode_policy,
    encode_policy,
    encode_tenant,
    hash_of,
)


@dataclass(frozen=True)
class Snapshot:
    """One moment's configuration."""

    head: ConfigHead
    policy: bytes
    #: The tenants changed since ``since``, or all of them; ``None`` for a removed one.
    tenants: dict[str, TenantRecord | None]
    #: Whether ``tenants`` has all tenants.
    complete: bool


def take_snapshot(environment: str, *, since: ConfigHead | None) -> Snapshot:
    """Read head, policy and tenants as of one moment.

    Reads all tenants when ``since`` is ``None`` or of another epoch. Must not run inside a
    transaction. Raises ``PolicyError`` when the rows make an invalid policy, which no pod must get.
    """
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        row = environment_of(environment)
        complete = since is None or since.epoch != row.epoch
        tenants = tenant_records(environment, since=-1 if complete or since is None else since.revision)
        policy = encode_policy(policy_of(row))
    decode_policy(policy)
    head = ConfigHead(epoch=row.epoch, revision=row.revision, hash=hash_of(policy))
    return Snapshot(head=head, policy=policy, tenants=tenants, complete=complete)


def encode_tenants(snapshot: Snapshot) -> dict[str, bytes]:
    """Return tenant -> record as Redis stores it, without removed tenants.

    Most tenants have only what their tier has, so they share one encoding.
    """
    plain: dict[tuple[str, bool, tuple[str, ...]], bytes] = {}
    encoded: dict[str, bytes] = {}
    for tenant, record in snapshot.tenants.items():
        if record is None:
            continue
        if record.quotas or record.budgets:
            encoded[tenant] = encode_tenant(record)
            continue
        kind = record.tier, record.suspended, record.parents
        text = plain.get(kind)
        if text is None:
            text = plain[kind] = encode_tenant(record)
        encoded[tenant] = text
    return encoded


def is_in_own_bucket(record: TenantRecord) -> bool:
    """Whether Redis stores the record apart from the tenants that have only what their tier has."""
    return bool(record.quotas or record.parents or record.budgets)
