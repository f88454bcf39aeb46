"""Keeps in Postgres what each server of Redis said last, for the alerts and ``/metrics``."""

from dataclasses import asdict
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from controlplane.fleet.models import RedisNode
from controlplane.redis.nodes import NodeFigures, read_nodes

#: A rate over less than this is noise.
_SHORTEST_S = 2.0
#: A server that nobody names any more is forgotten.
FORGET_AFTER = timedelta(minutes=10)


def measure_nodes() -> None:
    """Read INFO of every server. Raises ``redis.RedisError``."""
    found = read_nodes(settings.REDIS_URL)
    now = timezone.now()
    known = RedisNode.objects.in_bulk([node.address for node in found])
    rows = [_row(node, known.get(node.address), now) for node in found]
    columns = [field.name for field in RedisNode._meta.fields if not field.primary_key]
    RedisNode.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["address"], update_fields=columns
    )
    RedisNode.objects.filter(read_at__lt=now - FORGET_AFTER).delete()


def _row(node: NodeFigures, before: RedisNode | None, now: datetime) -> RedisNode:
    ops_per_s, cpu_share = node.ops_per_s, None
    if before is not None and before.run_id == node.run_id and node.commands >= before.commands:
        passed_s = (now - before.read_at).total_seconds()
        # A server's own figure is of one second, which may be a quiet one.
        if passed_s >= _SHORTEST_S:
            ops_per_s = (node.commands - before.commands) / passed_s
            if node.cpu_s and before.cpu_s:
                cpu_share = max(0.0, node.cpu_s - before.cpu_s) / passed_s
    measured = {
        "address": node.address[:255],
        "run_id": node.run_id[:64],
        "ops_per_s": ops_per_s if node.up else None,
        "cpu_s": node.cpu_s or None,
        "cpu_share": cpu_share,
        "read_at": now,
    }
    return RedisNode(**asdict(node) | measured)
