"""What the weekly summary takes with 100,000 active tenants: statements, and seconds of Postgres.

Every tenant asks in each of the 168 hours, and one in ten is refused something in each. Run it as
``python tools/bench/weekly_summary.py``.
"""

import sys
from datetime import UTC, date, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, control_plane, say, timed, within

BEGINS = date(2026, 5, 4)
START = datetime(2026, 5, 4, tzinfo=UTC)
TENANTS = 100_000
MAX_S = 600

#: One hour of all tenants; the others are copies of it.
_HOUR = """
    INSERT INTO series_tenant_hour
    SELECT mod(mod(id, 256) + 256, 256), %(start)s, %(writer)s, 3600, false,
        array_agg(id), array_agg(100 + n %% 900), array_agg(CASE WHEN n %% 10 = 0 THEN n %% 50 + 1 ELSE 0 END)
    FROM (
        SELECT n, ('x' || encode(substr(sha256(convert_to('customer-' || n, 'UTF8')), 1, 8), 'hex'))
            ::bit(64)::bigint AS id
        FROM generate_series(1, %(tenants)s) n
    ) AS things
    GROUP BY 1
"""
_COPIES = """
    INSERT INTO series_tenant_hour
    SELECT part, hour + make_interval(hours => more), writer, known_s, partial, ids, asked, refused
    FROM series_tenant_hour, generate_series(1, 167) AS more WHERE part >= 0
"""
_ABOUT = """
    INSERT INTO series_tenant_hour SELECT -1, %s::timestamptz + make_interval(hours => hour), %s, 3600, false,
        '{}', '{}', '{}' FROM generate_series(0, 167) AS hour
"""


def fill():
    from django.db import connection

    from controlplane.series.models import Writer

    writer = Writer.objects.create(gateway="g1", environment="production", started_at=START).id
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(_HOUR, {"tenants": TENANTS, "start": START, "writer": writer})
        cursor.execute(_COPIES)
        cursor.execute(_ABOUT, [START, writer])
        cursor.execute("VACUUM (ANALYZE) series_tenant_hour")
        cursor.execute("RESET statement_timeout")


def main():
    from django.db import connection, transaction
    from django.test.utils import CaptureQueriesContext

    from controlplane.weekly.summarize import summarize

    def summarize_week():
        with transaction.atomic():
            return summarize("production", BEGINS)

    bars = Bars()
    fill()
    with CaptureQueriesContext(connection) as queries:
        seconds, sections = timed(summarize_week)
    tenants = sections[0]
    say(f"{tenants['lines'][0]['found']}; {tenants['more']:,} more; {tenants['known']}")
    for query in queries:
        if float(query["time"]) > 0.1:
            say(f"{query['time']} s: {' '.join(query['sql'].split())[:100]}")
    bars.ratio_at_most("weekly_summary_statements", len(queries), 12)
    bars.figure("weekly_summary", seconds, f"s with {TENANTS:,} tenants")
    return bars.status


if __name__ == "__main__":
    within(MAX_S)
    with control_plane():
        status = main()
    sys.exit(status)
