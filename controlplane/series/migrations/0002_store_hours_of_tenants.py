"""Figures of each hour for all tenants, with a few hundred tenants in one row."""

from django.db import migrations

TABLE = """
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


class Migration(migrations.Migration):
    dependencies = [("series", "0001_store_series")]

    operations = [migrations.RunSQL(TABLE, "DROP TABLE series_tenant_hour;")]
