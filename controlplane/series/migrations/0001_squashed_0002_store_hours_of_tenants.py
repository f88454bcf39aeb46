"""Figures over time: frames of 10 s, hours of tenants, and one row of arrays per thing and hour. As of release 0.2.0.

``lz4`` is not used: the embedded Postgres does not have it. Gateways create the partitions.
"""

from django.db import migrations, models

TABLES = """
-- What one gateway counted in 10 s, for up to 250 things of one kind. `v` holds the fields of the first
-- thing, then those of the second, as in controlplane/series/kinds.py; NULL is unknown.
CREATE TABLE series_frame (
    at timestamptz NOT NULL,
    writer integer NOT NULL,
    kind smallint NOT NULL,
    part smallint NOT NULL,
    ids integer[] NOT NULL,
    v integer[] NOT NULL,
    PRIMARY KEY (kind, part, at, writer)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX series_frame_by_time ON series_frame (at);

-- That a gateway measured at all. A span without a row is unknown.
CREATE TABLE series_span (
    at timestamptz NOT NULL,
    writer integer NOT NULL,
    covered_ms integer NOT NULL,
    pods_heard integer NOT NULL,
    pods_known integer NOT NULL,
    -- A tenant that is not listed asked for at most this; 0 if all tenants are listed.
    tenant_floor bigint NOT NULL,
    PRIMARY KEY (at, writer)
);

-- One hour of one thing: 360 values of the first field, then of the second.
CREATE TABLE series_10s (
    entity integer NOT NULL,
    hour timestamptz NOT NULL,
    v integer[] NOT NULL,
    PRIMARY KEY (entity, hour)
) PARTITION BY RANGE (hour);

-- 60 numbers of known spans, then 60 values of each field.
CREATE TABLE series_1m (
    entity integer NOT NULL,
    hour timestamptz NOT NULL,
    v integer[] NOT NULL,
    PRIMARY KEY (entity, hour)
) PARTITION BY RANGE (hour);

-- 24 numbers of known spans, then 24 values of each field.
CREATE TABLE series_1h (
    entity integer NOT NULL,
    day timestamptz NOT NULL,
    v bigint[] NOT NULL,
    PRIMARY KEY (entity, day)
) PARTITION BY RANGE (day);

-- What one run of a gateway counted of the tenants of one part in one hour. `ids` are numbers of tenants, see
-- tenant_number in controlplane/series/kinds.py. Part -1 is about the hour, and has no tenants: for how many
-- seconds it was measured, and whether the requests of some tenants are missing.
CREATE TABLE series_tenant_hour (
    part smallint NOT NULL,
    hour timestamptz NOT NULL,
    writer integer NOT NULL,
    known_s integer NOT NULL,
    partial boolean NOT NULL,
    ids bigint[] NOT NULL,
    asked integer[] NOT NULL,
    refused integer[] NOT NULL,
    PRIMARY KEY (part, hour, writer)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX series_tenant_hour_by_writer ON series_tenant_hour (writer) WHERE part = -1;
"""
NO_TABLES = "DROP TABLE series_frame, series_span, series_10s, series_1m, series_1h, series_tenant_hour;"


class Migration(migrations.Migration):
    initial = True

    replaces = [("series", "0001_store_series"), ("series", "0002_store_hours_of_tenants")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Entity",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("environment", models.CharField(max_length=64)),
                ("kind", models.SmallIntegerField()),
                ("name", models.CharField(blank=True, max_length=200)),
                ("sub", models.CharField(blank=True, max_length=64)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
            ],
            options={
                "verbose_name_plural": "entities",
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "kind", "name", "sub"), name="series_entity_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="Writer",
            fields=[
                ("id", models.AutoField(primary_key=True, serialize=False)),
                ("gateway", models.CharField(max_length=100)),
                ("environment", models.CharField(max_length=64)),
                ("started_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Seal",
            fields=[
                ("hour", models.DateTimeField(primary_key=True, serialize=False)),
                ("final", models.BooleanField(default=False)),
                ("sealed_at", models.DateTimeField()),
            ],
        ),
        migrations.RunSQL(TABLES, NO_TABLES),
    ]
