"""Reads Postgres for the gateway: with Django's ORM in a separate thread, never in a request."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import close_old_connections
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from msgspec import ValidationError

from controlplane.accounts.models import AgentToken
from controlplane.breakers.override_in_gateways import HandedOverride
from controlplane.breakers.override_in_redis import adopt_handed
from controlplane.errors import NotFound
from controlplane.fleet.live import GATEWAY_STOPPED_AFTER
from controlplane.fleet.models import Figures, Server, ServerState
from controlplane.gateway.answers.configuration import Loaded
from controlplane.gateway.servers.known_names import MAX_NAMES
from controlplane.gateway.wire.tokens import Token
from controlplane.policies.models import Environment
from controlplane.publishing.snapshot import take_snapshot
from fuseboard.contract.limits import PolicyError
from fuseboard.contract.policy import ConfigHead, encode_tenant

#: Servers taken over at one reading: a fleet that lost one of its gateways comes in a few steps.
_ORPHANS_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Changes since the last reading; ``servers`` only when asked for."""

    tokens: dict[str, Token]
    #: By environment; those whose head is the one already known are left out.
    loaded: dict[str, Loaded]
    servers: list[Server]
    #: Environment -> why its configuration could not be read.
    unreadable: dict[str, str]
    #: Id, environment and name of every pod with a row; only with ``servers``.
    names: Sequence[tuple[int, str, str]] = ()
    #: Ids of the holds in memory that Postgres has by now.
    adopted: tuple[str, ...] = ()


def read(
    known: dict[str, ConfigHead], *, with_servers: bool, gateway: str, holds: Sequence[HandedOverride] = ()
) -> Reading:
    """Everything that is newer than ``known``, and the pods of gateways that stopped.

    ``with_servers`` also those that ``gateway`` itself looked after. ``holds`` become durable first.
    Raises ``django.db.Error``.
    """
    close_old_connections()
    adopted = tuple(adopt_handed(holds))
    loaded: dict[str, Loaded] = {}
    unreadable: dict[str, str] = {}
    for slug, epoch, revision in Environment.objects.values_list("slug", "epoch", "revision"):
        head = known.get(slug)
        if head is not None and (epoch, revision) <= (head.epoch, head.revision):
            continue
        try:
            loaded[slug] = _load(slug, head)
        except (PolicyError, NotFound, ValidationError) as error:
            unreadable[slug] = str(error)
    servers = list(_servers(gateway) if with_servers else _orphans(gateway)[:_ORPHANS_AT_ONCE])
    named = Server.objects.order_by("-id").values_list("id", "environment", "name")[:MAX_NAMES]
    names = list(named) if with_servers else ()
    return Reading(
        tokens=_tokens(),
        loaded=loaded,
        servers=servers,
        unreadable=unreadable,
        names=names,
        adopted=adopted,
    )


def _orphans(gateway: str) -> QuerySet[Server]:
    """Servers whose gateway has stopped."""
    alive = Figures.objects.filter(
        gateway=OuterRef("gateway"),
        environment=OuterRef("environment"),
        at__gte=Now() - GATEWAY_STOPPED_AFTER,
    )
    there = Server.objects.exclude(state=ServerState.GONE)
    return there.filter(~Exists(alive)).exclude(gateway=gateway)


def _servers(gateway: str) -> QuerySet[Server]:
    return _orphans(gateway) | Server.objects.exclude(state=ServerState.GONE).filter(gateway=gateway)


def _load(environment: str, known: ConfigHead | None) -> Loaded:
    snapshot = take_snapshot(environment, since=known)
    # Most tenants have the record of their tier and nothing more: one object serves them all.
    shared: dict[bytes, bytes] = {}
    tenants: dict[str, bytes | None] = {}
    for tenant, record in snapshot.tenants.items():
        encoded = None if record is None else encode_tenant(record)
        tenants[tenant] = None if encoded is None else shared.setdefault(encoded, encoded)
    return Loaded(head=snapshot.head, policy=snapshot.policy, tenants=tenants, whole=snapshot.complete)


def _tokens() -> dict[str, Token]:
    valid = AgentToken.objects.filter(Q(revoked_at__isnull=True) | Q(revoked_at__gt=Now()))
    return {
        selector: Token(
            selector=selector,
            digest=bytes.fromhex(digest),
            environment=environment,
            expires_at=min(ends.timestamp() for ends in (expires_at, revoked_at) if ends is not None),
            service=service,
            name_prefix=name_prefix,
        )
        for selector, digest, environment, expires_at, revoked_at, service, name_prefix in valid.values_list(
            "selector", "digest", "environment", "expires_at", "revoked_at", "service", "name_prefix"
        )
    }
