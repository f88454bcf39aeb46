"""What the history takes in Postgres at full size: rows, bytes and log of a day, and a chart of 30 days.

One hour is written as gateways do, and sealed as the worker does. Beside it, the obvious layout writes a row
per thing and point. Run it as ``python tools/bench/history.py``; ``docs/benchmarks.md`` explains each line.
"""

import json
import random
import statistics
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))

from control_plane.stand import Bars, control_plane, say, timed, within

HOUR = datetime(2026, 5, 4, 13, tzinfo=UTC)
TICKS = 360
TICKS_A_DAY = 8_640
#: Ticks of the layouts beside ours, which take far more.
SAMPLED = 30
TENANTS = 100_000
DAYS = 30
#: For the whole script; an idle machine needs a quarter of it.
MAX_S = 600


def things():
    from controlplane.series.kinds import DEPENDENCY, FLEET, POD, RULE, TENANT

    return {FLEET: 1, DEPENDENCY: 200, POD: 1_000, TENANT: 200, RULE: 600}


def ask(query, *parameters):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchone()[0]


def log_of(work, *arguments):
    """Seconds, and bytes of write-ahead log."""
    before = ask("SELECT pg_current_wal_lsn()::text")
    seconds, _ = timed(work, *arguments)
    return seconds, int(ask("SELECT pg_current_wal_lsn() - %s::pg_lsn", before))


def size_of(table):
    """With its indexes and what is stored beside it."""
    parts = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(%s::regclass)"
    return int(ask(f"SELECT coalesce(({parts}), pg_total_relation_size(%s::regclass))", table, table))


def rows_of(*tables):
    return sum(ask(f"SELECT count(*) FROM {table}") for table in tables)  # noqa: S608


class Values:
    """Values of every thing that change a little with each tick; 40 % of them are near zero."""

    def __init__(self):
        from controlplane.series.models import Entity

        self.chance = random.Random(7)
        self.kinds, self.walks = {}, {}
        for kind, count in things().items():
            made = Entity.objects.bulk_create(
                Entity(environment="production", kind=kind.number, name=f"{kind.name}-{n}", first_at=HOUR,
                       last_at=HOUR)
                for n in range(count)
            )  # fmt: skip
            for one in made:
                self.kinds[one.id] = kind
                self.walks[one.id] = [
                    0 if self.chance.random() < 0.4 else self.chance.randrange(1, 500) for _ in kind.fields
                ]

    def walk(self, tick):
        for walk in self.walks.values():
            for place, value in enumerate(walk):
                if value or not tick % 30:
                    walk[place] = max(0, value + self.chance.randrange(-9, 10))

    def __iter__(self):
        return iter((number, self.kinds[number], list(walk)) for number, walk in self.walks.items())

    @property
    def each(self):
        return sum(len(walk) for walk in self.walks.values())


def many(statement, rows):
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.executemany(statement, rows)


def write_frames(values, writer, took):
    from controlplane.gateway.postgres.series_frames import _frames

    for tick in range(TICKS):
        values.walk(tick)
        at = HOUR + timedelta(seconds=10 * tick)
        parts = _frames({number: (kind, walk) for number, kind, walk in values})
        begun = perf_counter()
        many(
            "INSERT INTO series_frame (at, writer, kind, part, ids, v) VALUES (%s, %s, %s, %s, %s, %s)",
            [(at, writer, *part) for part in parts],
        )
        many("INSERT INTO series_span VALUES (%s, %s, 10000, 1000, 1000, 0)", [(at, writer)])
        took.append(perf_counter() - begun)


def write_points(values):
    """The obvious layout: a row per thing and point."""
    for tick in range(SAMPLED):
        values.walk(tick)
        at = HOUR + timedelta(seconds=10 * tick)
        many(
            "INSERT INTO a_row_per_point VALUES (%s, %s, %s) "
            "ON CONFLICT (entity, at) DO UPDATE SET v = EXCLUDED.v",
            [(number, at, walk) for number, _, walk in values],
        )


def write_demand():
    """What-if's record of 200 tenants and 600 quotas, as the worker samples and rolls it up."""
    from controlplane.usage.rollups import _write, roll_up
    from controlplane.usage.tables import RULES, TENANTS

    counted = {"asked": 40, "refused": 2, "shadow": 0}
    tenants = {("production", f"tenant-{n}"): counted for n in range(200)}
    rules = {("production", f"tenant-{n % 200}", f"rule-{n // 200}"): counted for n in range(600)}
    for tick in range(SAMPLED):
        at = HOUR + timedelta(seconds=10 * tick)
        _write(TENANTS, tenants, at)
        _write(RULES, rules, at)
        if tick % 3 == 2:
            roll_up(at)


def measure_day(bars):
    from django.db import connection

    from controlplane.series import sealing
    from controlplane.series.models import Writer

    writer = Writer.objects.create(gateway="g1", environment="production", started_at=HOUR).id
    values, took = Values(), []
    say(f"{len(values.walks):,} things, {values.each:,} values in each 10 s, {TICKS_A_DAY:,} times a day:")
    _, frame_log = log_of(write_frames, values, writer, took)
    rows, frames_size = rows_of("series_frame"), size_of("series_frame")
    bars.figure("history_frame_rows", rows * 24, "rows a day, kept 3 hours")
    bars.figure("history_frames", frames_size / 1e6, "MB an hour")
    bars.figure("history_frame_log", frame_log * 24 / 1e9, "GB of write-ahead log a day")
    bars.figure("history_write", statistics.median(took) * 1000, "ms for 10 s (p50)")
    seconds, seal_log = log_of(sealing.seal, HOUR + timedelta(hours=1, minutes=7))
    bars.figure("history_seal", seconds, "s for an hour")
    bars.figure("history_seal_log", seal_log * 24 / 1e9, "GB of write-ahead log a day")
    for table, a_day in (("series_10s", 24), ("series_1m", 24), ("series_1h", 1)):
        count = rows_of(table)
        bars.figure(f"history_{table}", size_of(table) * a_day / 1e6, f"MB a day, {count * a_day:,} rows")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE a_row_per_point "
            "(entity integer, at timestamptz, v integer[], PRIMARY KEY (entity, at))"
        )
    _, point_log = log_of(write_points, values)
    point_log *= TICKS / SAMPLED
    size = size_of("a_row_per_point") * TICKS_A_DAY / SAMPLED
    say(f"a row per thing and point: {size / 1e9:.1f} GB and {point_log * 24 / 1e9:.1f} GB of log a day")
    bars.ratio("history_log_vs_rows", point_log / (frame_log + seal_log), 5)
    bars.ratio("history_size_vs_rows", size / (size_of("series_10s") * 24), 8)
    _, demand_log = log_of(write_demand)
    days = TICKS_A_DAY / SAMPLED
    size = size_of("usage_demand") + size_of("usage_ruledemand")
    rows = rows_of("usage_demand", "usage_ruledemand")
    say("what-if's record of 200 tenants and 600 quotas:")
    taken = f"{rows * days / 1e6:.1f} million rows, {size * days / 1e9:.2f} GB"
    say(f"{taken} and {demand_log * days / 1e9:.1f} GB of log a day")


def measure_chart(bars):
    """A tenant among 100,000, each with 30 days of hours; rows of one day are next to each other."""
    from django.db import connection

    from controlplane.series import partitions
    from controlplane.series.kinds import TENANT
    from controlplane.series.reading import read

    end = HOUR.replace(day=31, hour=0)
    for day in (end - timedelta(days=DAYS), end):
        partitions.ensure(day)
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            "INSERT INTO series_entity (environment, kind, name, sub, first_at, last_at) "
            "SELECT 'production', %s, 'customer-' || n, '', %s, %s FROM generate_series(1, %s) n",
            [TENANT.number, end - timedelta(days=DAYS), end, TENANTS],
        )
        for back in range(DAYS, 0, -1):
            cursor.execute(
                "INSERT INTO series_1h SELECT id, %s, %s::bigint[] "
                "FROM series_entity WHERE name LIKE 'customer-%%'",
                [end - timedelta(days=back), [360] * 24 + list(range(48))],
            )
        cursor.execute("VACUUM (ANALYZE) series_1h")
        cursor.execute("ANALYZE series_entity")
        cursor.execute("RESET statement_timeout")
    say(f"{TENANTS:,} tenants with {DAYS} days of hours, {size_of('series_1h') / 1e6:,.0f} MB:")
    wanted = {"fields": ["asked", "refused"], "start": end - timedelta(days=DAYS), "end": end, "now": end}
    took, pages = [], []
    for n in range(1, 30):
        name = f"customer-{n * 3_331}"
        seconds, answer = timed(lambda name=name: read("production", TENANT, name, **wanted))
        assert sum(map(bool, answer.known_s)) == DAYS * 24, name
        took.append(seconds)
        pages.append(_pages(name, end))
    bars.figure("history_30_days", statistics.median(took) * 1000, "ms for a chart of 30 days of one tenant")
    bars.none("history_30_days_pages_over_150", sum(count > 150 for count in pages), "charts")
    bars.figure("history_30_days_pages", statistics.median(pages), "pages")


def _pages(name, end):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT day, v[1:24], v[25:48], v[49:72] FROM series_1h "
            "WHERE entity = (SELECT id FROM series_entity WHERE name = %s) AND day >= %s AND day < %s",
            [name, end - timedelta(days=DAYS), end],
        )
        plan = cursor.fetchone()[0]
    plan = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return sum(
        scan["Shared Hit Blocks"] + scan["Shared Read Blocks"]
        for scan in _scans(plan)
        if scan.get("Relation Name", "").startswith("series_1h")
    )


def _scans(plan):
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _scans(inner)


def main():
    bars = Bars()
    measure_day(bars)
    measure_chart(bars)
    return bars.status


if __name__ == "__main__":
    within(MAX_S)
    with control_plane():
        status = main()
    sys.exit(status)
