"""Entries are chained and cannot be changed or removed; SQL from elsewhere is recorded. As of release 0.2.0.

Whoever writes entries needs no right on the heads of the chains: the functions have those of the table's owner.
"""

from django.db import migrations, models
from django.db.models.functions import Now
from pgtrigger.compiler import Trigger, UpsertTriggerSql
from pgtrigger.migrations import AddTrigger

# Columns that were added later are hashed only if one of them has a value, so earlier entries keep their hashes.
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
    || audit_part(e.environment) || audit_part(e.epoch::text) || audit_part(e.revision::text)
    || CASE WHEN e.request_id <> '' OR e.trace_id <> ''
         THEN audit_part(e.token) || audit_part(e.owner) || audit_part(e.request_id) || audit_part(e.trace_id)
         WHEN e.token <> '' OR e.owner <> '' THEN audit_part(e.token) || audit_part(e.owner)
         ELSE '' END,
    'UTF8')), 'hex')
$$;
"""
DROP_HASH = "DROP FUNCTION audit_hash(text, audit_entry); DROP FUNCTION audit_part(text);"

# A head moves once per transaction, not with every entry: of a row that is updated again and again within one
# transaction, all versions remain until its end.
# The head stays the lock, and what the first entry of a transaction follows: an entry removed from the end
# of the chain leaves a gap. Without index a lookup would read every entry, as is planned while there are few.
SEAL = """
CREATE FUNCTION audit_seal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE head audit_chainhead; last record;
BEGIN
  SELECT * INTO head FROM audit_chainhead WHERE environment = NEW.environment FOR UPDATE;
  IF NOT FOUND THEN
    INSERT INTO audit_chainhead (environment, sequence, hash)
      VALUES (NEW.environment, 0, repeat('0', 64)) ON CONFLICT (environment) DO NOTHING;
    SELECT * INTO STRICT head FROM audit_chainhead WHERE environment = NEW.environment FOR UPDATE;
  END IF;
  SELECT sequence, hash INTO last FROM audit_entry
    WHERE environment = NEW.environment AND sequence > head.sequence ORDER BY sequence DESC LIMIT 1;
  NEW.sequence := coalesce(last.sequence, head.sequence) + 1;
  NEW.hash := audit_hash(coalesce(last.hash, head.hash), NEW);
  RETURN NEW;
END $$;
CREATE TRIGGER audit_seal BEFORE INSERT ON audit_entry FOR EACH ROW EXECUTE FUNCTION audit_seal();

CREATE FUNCTION audit_move_head() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM audit_entry WHERE environment = NEW.environment AND sequence > NEW.sequence) THEN
    UPDATE audit_chainhead SET sequence = NEW.sequence, hash = NEW.hash WHERE environment = NEW.environment;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER audit_move_head AFTER INSERT ON audit_entry
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit_move_head();
"""
DROP_SEAL = """
DROP TRIGGER audit_move_head ON audit_entry;
DROP FUNCTION audit_move_head();
DROP TRIGGER audit_seal ON audit_entry;
DROP FUNCTION audit_seal();
"""

# ALWAYS: also while somebody plays replica.
PROTECT = """
ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_append_only_a6b88;
ALTER TABLE audit_entry ENABLE ALWAYS TRIGGER pgtrigger_never_emptied_6c9ae;
"""

# Attached to tables by `controlplane.audit.guards`. Its arguments: columns that are secrets, and
# columns that are no configuration. Deferred, so that whoever records a change may do so last.
DIRECT = """
CREATE FUNCTION audit_direct_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
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
    initial = True

    replaces = [
        ("audit", "0001_create_entries"),
        ("audit", "0002_chain_entries"),
        ("audit", "0003_seal_with_the_owners_rights"),
        ("audit", "0004_move_heads_once"),
        ("audit", "0005_name_tokens_and_owners"),
        ("audit", "0006_name_requests"),
        ("audit", "0007_find_entries_by_request"),
        ("audit", "0008_find_cleared_counters"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Entry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(db_default=Now())),
                ("actor", models.CharField(max_length=200)),
                ("role", models.CharField(max_length=32)),
                ("origin", models.CharField(max_length=16)),
                ("address", models.CharField(blank=True, max_length=64)),
                ("action", models.CharField(max_length=64)),
                ("target_kind", models.CharField(max_length=32)),
                ("target_name", models.CharField(max_length=200)),
                ("before", models.JSONField(null=True)),
                ("after", models.JSONField(null=True)),
                ("reason", models.CharField(blank=True, max_length=500)),
                ("environment", models.CharField(blank=True, max_length=64)),
                ("epoch", models.BigIntegerField(null=True)),
                ("revision", models.BigIntegerField(null=True)),
                ("hash", models.CharField(editable=False, max_length=64, null=True)),
                ("sequence", models.BigIntegerField(editable=False, null=True)),
                ("token", models.CharField(blank=True, db_default="", default="", max_length=32)),
                ("owner", models.CharField(blank=True, db_default="", default="", max_length=150)),
                ("request_id", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("trace_id", models.CharField(blank=True, db_default="", default="", max_length=32)),
            ],
            options={
                "verbose_name_plural": "entries",
                "indexes": [
                    models.Index(fields=["environment", "-at", "-id"], name="entry_newest_first"),
                    models.Index(fields=["target_kind", "target_name", "-id"], name="entry_by_target"),
                    models.Index(
                        condition=models.Q(("request_id", ""), _negated=True),
                        fields=["request_id", "-id"],
                        name="entry_by_request_id",
                    ),
                    models.Index(
                        condition=models.Q(("trace_id", ""), _negated=True),
                        fields=["trace_id", "-id"],
                        name="entry_by_trace_id",
                    ),
                    models.Index(
                        condition=models.Q(("token", ""), _negated=True), fields=["token", "-id"], name="entry_by_token"
                    ),
                    models.Index(
                        condition=models.Q(("owner", ""), _negated=True), fields=["owner", "-id"], name="entry_by_owner"
                    ),
                    models.Index(
                        condition=models.Q(("action", "counter.cleared")),
                        fields=["environment", "-at"],
                        name="entry_of_cleared_counter",
                    ),
                ],
                "constraints": [models.UniqueConstraint(fields=("environment", "sequence"), name="entry_chained_once")],
            },
        ),
        AddTrigger(
            model_name="entry",
            trigger=Trigger(
                name="append_only",
                sql=UpsertTriggerSql(
                    func="RAISE EXCEPTION 'pgtrigger: Cannot update or delete rows from % table', TG_TABLE_NAME;",
                    hash="1b389f8260e22d0fbf38b4ff1e20214212b176ee",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_a6b88",
                    table="audit_entry",
                    when="BEFORE",
                ),
            ),
        ),
        AddTrigger(
            model_name="entry",
            trigger=Trigger(
                name="never_emptied",
                sql=UpsertTriggerSql(
                    func="RAISE EXCEPTION 'append_only: entries of the audit cannot be removed';",
                    hash="eccf7397f7b23f47d753a042d8af3b012b976bcc",
                    level="STATEMENT",
                    operation="TRUNCATE",
                    pgid="pgtrigger_never_emptied_6c9ae",
                    table="audit_entry",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.CreateModel(
            name="ChainHead",
            fields=[
                ("environment", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("sequence", models.BigIntegerField()),
                ("hash", models.CharField(max_length=64)),
            ],
        ),
        migrations.RunSQL(HASH, DROP_HASH),
        migrations.RunSQL(SEAL, DROP_SEAL),
        migrations.RunSQL(PROTECT, migrations.RunSQL.noop),
        migrations.RunSQL(DIRECT, DROP_DIRECT),
    ]
