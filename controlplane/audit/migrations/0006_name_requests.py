"""An entry names the request that made the change, and its trace. Earlier entries keep their hashes.

The two columns are hashed only if one of them has a value, so the hash of an entry without them is what it was.
"""

from django.db import migrations, models

HEAD = """
CREATE OR REPLACE FUNCTION audit_hash(previous text, e audit_entry) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(
    audit_part(previous) || audit_part(e.sequence::text) || audit_part(e.id::text)
    || audit_part(to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'))
    || audit_part(e.actor) || audit_part(e.role) || audit_part(e.origin) || audit_part(e.address)
    || audit_part(e.action) || audit_part(e.target_kind) || audit_part(e.target_name)
    || audit_part(e.before::text) || audit_part(e.after::text) || audit_part(e.reason)
    || audit_part(e.environment) || audit_part(e.epoch::text) || audit_part(e.revision::text)"""
END = """,
    'UTF8')), 'hex')
$$;
"""
# `controlplane.audit.chain` computes the same in Python: change neither alone.
TOKEN = """
    || CASE WHEN e.token = '' AND e.owner = '' THEN '' ELSE audit_part(e.token) || audit_part(e.owner) END"""
REQUEST = """
    || CASE WHEN e.request_id <> '' OR e.trace_id <> ''
         THEN audit_part(e.token) || audit_part(e.owner) || audit_part(e.request_id) || audit_part(e.trace_id)
         WHEN e.token <> '' OR e.owner <> '' THEN audit_part(e.token) || audit_part(e.owner)
         ELSE '' END"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0005_name_tokens_and_owners")]

    operations = [
        migrations.AddField(
            model_name="entry",
            name="request_id",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddField(
            model_name="entry",
            name="trace_id",
            field=models.CharField(blank=True, db_default="", default="", max_length=32),
        ),
        migrations.RunSQL(HEAD + REQUEST + END, HEAD + TOKEN + END),
    ]
