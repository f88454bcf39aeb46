"""An entry names the token that was used, and its owner. Earlier entries keep their hashes.

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


class Migration(migrations.Migration):
    dependencies = [("audit", "0004_move_heads_once")]

    operations = [
        migrations.AddField(
            model_name="entry",
            name="token",
            field=models.CharField(blank=True, db_default="", default="", max_length=32),
        ),
        migrations.AddField(
            model_name="entry",
            name="owner",
            field=models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
        migrations.RunSQL(HEAD + TOKEN + END, HEAD + END),
    ]
