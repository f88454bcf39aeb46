"""Every entry is chained to the one before it; none can be removed; SQL from elsewhere is recorded."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

# `controlplane.audit.chain` computes the same in Python: change neither alone.
HASH = """
CREATE FUNCTION audit_part(value text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE WHEN value IS NULL THEN '-,' ELSE octet_length(value) || ':' || value || ',' END
$$;

CREATE FUNCTION audit_hash(previous text, e audit_entry) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT encode(sha256(convert_to(
    audit_part(previous) || audit_part(e.sequence::text) || audit_part(e.id::text)
    || audit_part(to_char(e.at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'))
    || audit_part(e.actor) || audit_part(e.role) || audit_part(e.origin) || audit_part(e.address)
    || audit_part(e.action) || audit_part(e.target_kind) || audit_part(e.target_name)
    || audit_part(e.before::text) || audit_part(e.after::text) || audit_part(e.reason)
    || audit_part(e.environment) || audit_part(e.epoch::text) || audit_part(e.revision::text),
    'UTF8')), 'hex')
$$;
"""
DROP_HASH = "DROP FUNCTION audit_hash(text, audit_entry); DROP FUNCTION audit_part(text);"

# The row of the chain's head is locked until the transaction ends: its next entry waits, and sees it.
SEAL = """
CREATE FUNCTION audit_seal() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE last audit_chainhead;
BEGIN
  INSERT INTO audit_chainhead AS h (environment, sequence, hash)
    VALUES (NEW.environment, 0, repeat('0', 64))
    ON CONFLICT (environment) DO UPDATE SET sequence = h.sequence
    RETURNING h.* INTO last;
  NEW.sequence := last.sequence + 1;
  NEW.hash := audit_hash(last.hash, NEW);
  UPDATE audit_chainhead SET sequence = NEW.sequence, hash = NEW.hash WHERE environment = NEW.environment;
  RETURN NEW;
END $$;
CREATE TRIGGER audit_seal BEFORE INSERT ON audit_entry FOR EACH ROW EXECUTE FUNCTION audit_seal();
"""
DROP_SEAL = "DROP TRIGGER audit_seal ON audit_entry; DROP FUNCTION audit_seal();"

SEAL_EARLIER = """
ALTER TABLE audit_entry DISABLE TRIGGER pgtrigger_append_only_a6b88;
DO $$
DECLARE e audit_entry; last audit_chainhead; sealed text;
BEGIN
  FOR e IN SELECT * FROM audit_entry ORDER BY id LOOP
    INSERT INTO audit_chainhead AS h (environment, sequence, hash)
      VALUES (e.environment, 0, repeat('0', 64))
      ON CONFLICT (environment) DO UPDATE SET sequence = h.sequence
      RETURNING h.* INTO last;
    e.sequence := last.sequence + 1;
    sealed := audit_hash(last.hash, e);
    UPDATE audit_entry SET sequence = e.sequence, hash = sealed WHERE id = e.id;
    UPDATE audit_chainhead SET sequence = e.sequence, hash = sealed WHERE environment = e.environment;
  END LOOP;
END $$;
"""

# ALWAYS: also while somebody plays replica.
PROTECT = """
ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_append_only_a6b88;
ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_never_emptied_6c9ae;
"""
PROTECT_LESS = "ALTER TABLE audit_entry ENABLE TRIGGER pgtrigger_append_only_a6b88;"

# Attached to tables by `controlplane.audit.guards`. Its arguments: columns that are secrets, and
# columns that are no configuration. Deferred, so that whoever records a change may do so last.
DIRECT = """
CREATE FUNCTION audit_direct_write() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  old_row jsonb; new_row jsonb; was jsonb; is_now jsonb; column_name text; named jsonb;
BEGIN
  IF coalesce(current_setting('fuseboard.actor', true), '') <> '' THEN
    RETURN NULL;
  END IF;
  IF TG_OP = 'TRUNCATE' THEN
    named := '{}';
  ELSE
    IF TG_OP <> 'INSERT' THEN old_row := to_jsonb(OLD) - string_to_array(TG_ARGV[1], ','); END IF;
    IF TG_OP <> 'DELETE' THEN new_row := to_jsonb(NEW) - string_to_array(TG_ARGV[1], ','); END IF;
    IF old_row IS NOT DISTINCT FROM new_row THEN
      RETURN NULL;
    END IF;
    was := old_row - string_to_array(TG_ARGV[0], ',');
    is_now := new_row - string_to_array(TG_ARGV[0], ',');
    FOREACH column_name IN ARRAY string_to_array(TG_ARGV[0], ',') LOOP
      IF TG_OP = 'UPDATE' AND old_row -> column_name IS DISTINCT FROM new_row -> column_name THEN
        is_now := is_now || jsonb_build_object(column_name, 'replaced');
      END IF;
    END LOOP;
    named := coalesce(new_row, old_row);
  END IF;
  INSERT INTO audit_entry (at, actor, role, origin, address, action, target_kind, target_name,
                           before, after, reason, environment)
  VALUES (
    now(), left(session_user, 200), '', 'sql', coalesce(host(inet_client_addr()), ''),
    'sql.' || CASE TG_OP WHEN 'INSERT' THEN 'inserted' WHEN 'UPDATE' THEN 'updated'
                         WHEN 'DELETE' THEN 'deleted' ELSE 'truncated' END,
    left(regexp_replace(TG_TABLE_NAME, '^[a-z]+_', ''), 32),
    left(coalesce(named ->> 'username', named ->> 'slug', named ->> 'key', named ->> 'name',
                  named ->> 'id', TG_TABLE_NAME), 200),
    was, is_now,
    left('Written with SQL by ' || coalesce(nullif(current_setting('application_name', true), ''), '?'), 500),
    coalesce(named ->> 'environment_id', named ->> 'environment', ''));
  RETURN NULL;
END $$;
"""
DROP_DIRECT = "DROP FUNCTION audit_direct_write() CASCADE;"


class Migration(migrations.Migration):

    dependencies = [
        ('audit', '0001_create_entries'),
    ]

    operations = [
        migrations.CreateModel(
            name='ChainHead',
            fields=[
                ('environment', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('sequence', models.BigIntegerField()),
                ('hash', models.CharField(max_length=64)),
            ],
        ),
        migrations.AddField(
            model_name='entry',
            name='hash',
            field=models.CharField(editable=False, max_length=64, null=True),
        ),
        migrations.AddField(
            model_name='entry',
            name='sequence',
            field=models.BigIntegerField(editable=False, null=True),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name='entry',
            trigger=pgtrigger.compiler.Trigger(name='never_emptied', sql=pgtrigger.compiler.UpsertTriggerSql(func="RAISE EXCEPTION 'append_only: entries of the audit cannot be removed';", hash='eccf7397f7b23f47d753a042d8af3b012b976bcc', level='STATEMENT', operation='TRUNCATE', pgid='pgtrigger_never_emptied_6c9ae', table='audit_entry', when='BEFORE')),
        ),
        migrations.AddConstraint(
            model_name='entry',
            constraint=models.UniqueConstraint(fields=('environment', 'sequence'), name='entry_chained_once'),
        ),
        migrations.RunSQL(HASH, DROP_HASH),
        migrations.RunSQL(SEAL_EARLIER, migrations.RunSQL.noop),
        migrations.RunSQL(SEAL, DROP_SEAL),
        migrations.RunSQL(PROTECT, PROTECT_LESS),
        migrations.RunSQL(DIRECT, DROP_DIRECT),
    ]
