"""What hourly figures of 100,000 active tenants take in Postgres: rows, bytes and log of a day, and a chart.

One hour is counted and written as a gateway does it, and all tenants count in each of its writes. Run it as
``python tools/bench/tenant_hours.py``; ``docs/benchmarks.md`` explains each line.
"""

import asyncio
import os
import random
import statistics
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, control_plane, say, timed, within
from history import ask, log_of, rows_of, size_of

HOUR = datetime(2026, 5, 4, 13, tzinfo=UTC)
TENANTS = 100_000
DAYS = 30
MAX_S = 600


def count(hours, chance):
    """Five minutes of all tenants; returns the seconds of CPU."""
    from controlplane.gateway.servers.tenant_hours import Hour

    hour = hours.hours.setdefault(int(HOUR.timestamp()), Hour(int(HOUR.timestamp())))
    counted = [(f"customer-{n}", chance.randrange(1, 3_000), chance.randrange(40)) for n in range(TENANTS)]
    pods = [f"pod-{n % 1_000}" for n in range(TENANTS)]
    begun = process_time()
    for one, pod in zip(counted, pods, strict=True):
        hour.add(*one, pod=pod)
    hour.known_s += 300
    return process_time() - begun


async def write(hours, writer):
    from psycopg import AsyncConnection

    from controlplane.gateway.postgres.tenant_hours import write_hours

    connection = await AsyncConnection.connect(os.environ["DATABASE_URL"], autocommit=True)
    begun = process_time()
    await write_hours(connection, writer, hours, refused=print, wall=HOUR.timestamp() + 60, timeout_s=30.0)
    took = process_time() - begun
    await connection.close()
    return took


def measure_day(bars):
    from controlplane.gateway.postgres.tenant_hours import WRITE_S
    from controlplane.gateway.servers.tenant_hours import TenantHours
    from controlplane.series.models import Writer

    writer = Writer.objects.create(gateway="g1", environment="production", started_at=HOUR).id
    hours, chance, counted, written = TenantHours(), random.Random(7), [], []
    writes = int(3600 / WRITE_S)
    tracemalloc.start()
    count(hours, chance)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    def an_hour():
        for _ in range(writes):
            counted.append(count(hours, chance))
            written.append(asyncio.run(write(hours, writer)))

    _, log = log_of(an_hour)
    rows = rows_of("series_tenant_hour")
    stored = ask("SELECT sum(cardinality(ids)) FROM series_tenant_hour")
    bars.none("tenant_hours_left_out", TENANTS - stored, "tenants")
    bars.figure("tenant_hours_rows", rows * 24, "rows a day")
    bars.figure("tenant_hours_log", log * 24 / 1e9, "GB of write-ahead log a day")
    size = size_of("series_tenant_hour")
    bars.figure("tenant_hours_written", size / 1e6, f"MB of an hour after {writes} writes, not vacuumed")
    bars.figure("tenant_hours_write", statistics.median(written) * 1000, "ms of CPU for a write (p50)")
    bars.figure(
        "tenant_hours_count", statistics.median(counted) / TENANTS * 1e6, "us of CPU for a tenant (p50)"
    )
    bars.figure("tenant_hours_memory", memory / 1e6, "MB in a gateway for an hour")
    return log


def measure_chart(bars, row_bytes):
    from django.db import connection

    from controlplane.series.tenant_hours import read_hours

    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("VACUUM FULL series_tenant_hour")
        hour = size_of("series_tenant_hour")
        for back in range(1, DAYS * 24):
            cursor.execute(
                "INSERT INTO series_tenant_hour "
                "SELECT part, %s, writer, known_s, partial, ids, asked, refused "
                "FROM series_tenant_hour WHERE hour = %s",
                [HOUR - timedelta(hours=back), HOUR],
            )
        cursor.execute("VACUUM (ANALYZE) series_tenant_hour")
        cursor.execute("RESET statement_timeout")
    size = size_of("series_tenant_hour")
    say(f"{TENANTS:,} tenants with {DAYS} days of hours: {size / 1e6:,.0f} MB; one hour {hour / 1e6:.2f} MB")
    bars.figure("tenant_hours_day", size / DAYS / 1e6, "MB a day")
    bars.ratio("tenant_hours_size_vs_rows", row_bytes / (size / DAYS), 2)
    end = HOUR + timedelta(hours=1)
    wanted = {"fields": ["asked", "refused"], "start": end - timedelta(days=DAYS), "end": end, "now": end}
    took = []
    for n in range(1, 30):
        seconds, answer = timed(lambda n=n: read_hours("production", f"customer-{n * 3_331}", **wanted))
        assert None not in answer.fields["asked"], n
        took.append(seconds)
    bars.figure("tenant_hours_chart", statistics.median(took) * 1000, f"ms for a chart of {DAYS} days")


def write_rows(writes):
    """The obvious layout: a row per tenant and hour, to which each write adds."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        for _ in range(writes):
            cursor.execute(
                "INSERT INTO a_row_per_tenant SELECT n, %s, n %% 3000, n %% 40 FROM generate_series(1, %s) n "
                "ON CONFLICT (entity, hour) DO UPDATE SET asked = a_row_per_tenant.asked + EXCLUDED.asked",
                [HOUR, TENANTS],
            )


def measure_rows(bars, log):
    from django.db import connection

    from controlplane.gateway.postgres.tenant_hours import WRITE_S

    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE a_row_per_tenant "
            "(entity integer, hour timestamptz, asked integer, refused integer, PRIMARY KEY (entity, hour)) "
            "WITH (fillfactor = 50)"
        )
    _, rows_log = log_of(write_rows, int(3600 / WRITE_S))
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE a_row_per_tenant SET (fillfactor = 100)")
        cursor.execute("VACUUM FULL a_row_per_tenant")
    size = size_of("a_row_per_tenant") * 24
    say(f"a row per tenant and hour: {size / 1e6:,.0f} MB and {rows_log * 24 / 1e9:.1f} GB of log a day")
    bars.ratio("tenant_hours_log_vs_rows", rows_log / log, 3)
    return size


def main():
    bars = Bars()
    log = measure_day(bars)
    measure_chart(bars, measure_rows(bars, log))
    return bars.status


if __name__ == "__main__":
    within(MAX_S)
    with control_plane():
        status = main()
    sys.exit(status)
