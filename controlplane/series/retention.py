"""Deletes what is older than its retention."""

from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import connection
from django.utils import timezone

from controlplane.series import partitions
from controlplane.series.kinds import POD
from controlplane.series.models import MADE_UP, Entity, Seal
from controlplane.series.partitions import SPANS_1H, SPANS_1M, SPANS_10S

#: Things of one kind in one environment. The ones that were not measured for the longest time are deleted.
MAX_THINGS = 40_000

_SPANS = "DELETE FROM series_span WHERE at < %s"
_TENANT_HOURS = "DELETE FROM series_tenant_hour WHERE hour < %s"
_WRITERS = """
    DELETE FROM series_writer WHERE started_at < %s AND gateway <> %s
    AND NOT EXISTS (SELECT FROM series_span WHERE writer = series_writer.id)
    AND NOT EXISTS (SELECT FROM series_tenant_hour WHERE writer = series_writer.id AND part = -1)
"""
_TOO_MANY = """
    DELETE FROM series_entity WHERE id IN (
        SELECT id FROM (
            SELECT id, row_number() OVER (PARTITION BY environment, kind ORDER BY last_at DESC, id) AS place
            FROM series_entity
        ) AS placed WHERE place > %s
    )
"""

log = structlog.get_logger(__name__)


def forget(now: datetime | None = None) -> list[str]:
    """Delete what is too old; returns the partitions that were dropped."""
    now = now or timezone.now()
    minutes = now - timedelta(days=settings.SERIES_KEPT_MINUTES_D)
    oldest = {
        SPANS_10S: now - timedelta(hours=settings.SERIES_KEPT_10S_H),
        SPANS_1M: minutes,
        SPANS_1H: now - timedelta(days=settings.SERIES_KEPT_HOURS_D),
    }
    dropped = []
    for table, before in oldest.items():
        for name in partitions.expired(table, before):
            partitions.drop(name)
            dropped.append(name)
    with connection.cursor() as cursor:
        cursor.execute(_SPANS, [minutes])
        # Few rows, so that they need no partitions.
        cursor.execute(_TENANT_HOURS, [now - timedelta(days=settings.SERIES_KEPT_TENANTS_D)])
        # Charts still say of these that they are made up.
        cursor.execute(_WRITERS, [minutes, MADE_UP])
        cursor.execute(_TOO_MANY, [MAX_THINGS])
    Seal.objects.filter(hour__lt=minutes).delete()
    Entity.objects.filter(kind=POD.number, last_at__lt=minutes).delete()
    Entity.objects.filter(last_at__lt=oldest[SPANS_1H]).delete()
    if dropped:
        log.info("series.dropped", partitions=dropped)
    return dropped
