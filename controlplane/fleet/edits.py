"""Corrections of the fleet by operators: forget a pod, and believe that silent pods have stopped.

Gateways have the fleet in memory. They read the orders from Postgres within a second.
"""

from django.db import transaction

from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.errors import NotFound, find
from controlplane.fleet.live import figures
from controlplane.fleet.models import GatewayOrder, OrderKind, Server
from controlplane.policies.document import environment_of
from controlplane.validation import check_reason


def forget_pod(*, environment: str, server: str, reason: str, actor: Actor) -> None:
    """Delete what is known of a pod. If it sends another heartbeat, it is displayed again.

    Raises ``NotFound``.
    """
    slug = _checked(environment, reason)
    with transaction.atomic():
        row = find(Server.objects.select_for_update().filter(environment=slug), "server", name=server)
        GatewayOrder.objects.create(environment=slug, kind=OrderKind.FORGET, server=server)
        record(
            actor=actor,
            action="server.forgotten",
            target_kind="server",
            target_name=server,
            before={"state": row.state, "service": row.service, "last_seen_at": row.last_seen_at.isoformat()},
            reason=reason,
            environment=slug,
        )
        row.delete()


def lift_freeze(*, environment: str, reason: str, actor: Actor) -> None:
    """Mark the pods that are silent as offline, although many went silent at once.

    Raises ``NotFound`` if no gateway froze the expiry.
    """
    slug = _checked(environment, reason)
    now = figures(slug)
    if not now.frozen:
        raise NotFound("frozen expiry in", slug)
    with transaction.atomic():
        GatewayOrder.objects.create(environment=slug, kind=OrderKind.LIFT_FREEZE)
        record(
            actor=actor,
            action="fleet.freeze_lifted",
            target_kind="environment",
            target_name=slug,
            before={"silent": now.frozen_silent, "expected": now.frozen_expected},
            reason=reason,
            environment=slug,
        )


def _checked(environment: str, reason: str) -> str:
    check_reason(reason)
    return environment_of(environment).slug
