"""Reports of pods about missing counts, and about journals of dead pods that they reported."""

from datetime import datetime, timedelta

from django.db import connection

#: A pod that says nothing for so long does not report what it has.
_SILENT = timedelta(minutes=5)
_KEPT = timedelta(days=40)

# One row per process. It only grows, so two workers can write it at once. ``unreported`` counts for a pod
# that is gone, and is 0 again when the same process has reported.
_NOTE = """
    INSERT INTO reconciliation_lostcounts AS known
        (environment, server, boot, since, until, uncounted, expired, adopted, unreported)
    SELECT environment, name, boot, least(mode_since, last_seen_at), last_seen_at,
           coalesce((alone->>'uncounted')::bigint, 0), coalesce((alone->>'expired')::bigint, 0),
           coalesce((alone->>'adopted')::bigint, 0),
           CASE WHEN last_seen_at < %(silent)s OR state = 'gone'
                THEN coalesce((alone->>'unreported')::bigint, 0) ELSE 0 END
    FROM fleet_server
    WHERE alone <> '{}'::jsonb
      AND (alone ?| array['uncounted', 'expired', 'adopted']
           OR (alone ? 'unreported' AND (last_seen_at < %(silent)s OR state = 'gone')))
    ON CONFLICT (environment, server, boot) DO UPDATE
    SET until = CASE WHEN EXCLUDED.uncounted > known.uncounted OR EXCLUDED.expired > known.expired
                       OR EXCLUDED.adopted > known.adopted THEN EXCLUDED.until ELSE known.until END,
        uncounted = greatest(known.uncounted, EXCLUDED.uncounted),
        expired = greatest(known.expired, EXCLUDED.expired),
        adopted = greatest(known.adopted, EXCLUDED.adopted),
        unreported = EXCLUDED.unreported
    WHERE EXCLUDED.uncounted > known.uncounted OR EXCLUDED.expired > known.expired
       OR EXCLUDED.adopted > known.adopted OR EXCLUDED.unreported <> known.unreported
"""


def note_losses(now: datetime) -> int:
    """Keep what the rows of pods say, because rows change and go; returns the number of changed rows."""
    with connection.cursor() as cursor:
        cursor.execute(_NOTE, {"silent": now - _SILENT})
        noted = int(cursor.rowcount)
        cursor.execute("DELETE FROM reconciliation_lostcounts WHERE until < %s", [now - _KEPT])
    return noted
