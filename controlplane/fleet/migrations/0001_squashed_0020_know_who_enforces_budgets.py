"""What gateways know about pods, and what happened to them, as of release 0.2.0.

What a pod's own breaker did is an event. Breakers that the fleet opened are transitions.
"""

from django.db import migrations, models
from django.db.models.functions import Now

# After an update only: of a row that another gateway knows better nothing is updated, and nothing happens.
TURNS = """
CREATE FUNCTION fleet_server_turns() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- A process that was replaced never comes back: one that does is another under the same name.
  IF NEW.boot = OLD.previous_boot AND OLD.previous_boot <> '' THEN
    NEW.alternations := CASE WHEN OLD.alternated_at > now() - interval '10 minutes'
                             THEN OLD.alternations + 1 ELSE 1 END;
    NEW.alternated_at := now();
  ELSIF OLD.alternated_at < now() - interval '10 minutes' THEN
    NEW.alternations := 0;
  END IF;
  NEW.previous_boot := OLD.boot;
  RETURN NEW;
END $$;
CREATE TRIGGER fleet_server_turns BEFORE UPDATE ON fleet_server
  FOR EACH ROW WHEN (OLD.boot IS DISTINCT FROM NEW.boot) EXECUTE FUNCTION fleet_server_turns();
"""
NO_TURNS = "DROP TRIGGER fleet_server_turns ON fleet_server; DROP FUNCTION fleet_server_turns();"

NOTE = """
CREATE FUNCTION fleet_server_note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  found text[] := '{}';
  said text[] := '{}';
BEGIN
  IF TG_OP = 'INSERT' THEN
    found := array_append(found, 'joined'); said := array_append(said, 'version ' || NEW.agent_version);
  ELSE
    IF NEW.state = 'gone' AND OLD.state <> 'gone' THEN
      found := array_append(found, 'left');
      said := array_append(said, CASE WHEN OLD.state IN ('unknown', 'offline')
                                       THEN 'given up after a long silence' ELSE 'it said goodbye' END);
    ELSIF NEW.boot <> OLD.boot AND NEW.alternations = 0 OR OLD.state = 'gone' AND NEW.state <> 'gone' THEN
      found := array_append(found, 'joined');
      said := array_append(said, CASE WHEN OLD.state = 'gone' THEN 'version ' || NEW.agent_version
                                       ELSE 'started again, version ' || NEW.agent_version END);
    ELSIF NEW.state = 'unknown' AND OLD.state IN ('online', 'late') THEN
      found := array_append(found, 'silent'); said := array_append(said, 'its lease is over');
    ELSIF NEW.state = 'offline' AND OLD.state <> 'offline' THEN
      found := array_append(found, 'offline'); said := array_append(said, 'not heard for three leases');
    ELSIF NEW.state IN ('online', 'late') AND OLD.state IN ('unknown', 'offline') THEN
      found := array_append(found, 'back');
      said := array_append(said, 'after ' || round(extract(epoch FROM NEW.last_seen_at - OLD.last_seen_at)) || ' s');
    END IF;
    IF (NEW.rivals > 0 AND OLD.rivals = 0) OR (NEW.alternations = 2 AND OLD.alternations < 2) THEN
      found := array_append(found, 'duplicate'); said := array_append(said, 'two processes use this name: give each its own');
    END IF;
  END IF;
  IF (NEW.mode <> CASE WHEN TG_OP = 'INSERT' THEN 'shared' ELSE OLD.mode END) THEN
    found := array_append(found, 'mode');
    said := array_append(said, left(CASE WHEN TG_OP = 'INSERT' THEN '' ELSE OLD.mode || ' -> ' END || NEW.mode
                                     || CASE WHEN NEW.mode_cause = '' THEN '' ELSE ': ' || NEW.mode_cause END, 500));
  END IF;
  IF NEW.config_status = 'rejected' AND (TG_OP = 'INSERT' OR OLD.config_status <> 'rejected'
                                         OR OLD.config_error <> NEW.config_error) THEN
    found := array_append(found, 'config_rejected'); said := array_append(said, NEW.config_error::text);
  ELSIF TG_OP = 'UPDATE' AND OLD.config_status = 'rejected' AND NEW.config_status = 'applied' THEN
    found := array_append(found, 'config_accepted'); said := array_append(said, 'revision ' || NEW.revision);
  END IF;
  INSERT INTO fleet_event (environment, server, boot, kind, detail)
    SELECT NEW.environment, NEW.name, NEW.boot, kind, detail FROM unnest(found, said) AS happened(kind, detail);
  RETURN NULL;
END $$;
CREATE TRIGGER fleet_server_joined AFTER INSERT ON fleet_server
  FOR EACH ROW EXECUTE FUNCTION fleet_server_note();
CREATE TRIGGER fleet_server_changed AFTER UPDATE ON fleet_server
  FOR EACH ROW WHEN (OLD.boot IS DISTINCT FROM NEW.boot OR OLD.state IS DISTINCT FROM NEW.state
    OR OLD.mode IS DISTINCT FROM NEW.mode OR OLD.rivals IS DISTINCT FROM NEW.rivals
    OR OLD.config_status IS DISTINCT FROM NEW.config_status OR OLD.config_error IS DISTINCT FROM NEW.config_error)
  EXECUTE FUNCTION fleet_server_note();
"""
NO_NOTE = """
DROP TRIGGER fleet_server_joined ON fleet_server;
DROP TRIGGER fleet_server_changed ON fleet_server;
DROP FUNCTION fleet_server_note();
"""

# A pod decides what it reports, so its events are bounded: 100 per hour.
# Every row of a batch runs these triggers: the work for one row must stay small.
BOUND = """
CREATE FUNCTION fleet_server_has_too_many_events(its_environment text, its_name text) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT count(*) >= 100 FROM (
    SELECT 1 FROM fleet_event
    WHERE environment = its_environment AND server = its_name AND at > now() - interval '1 hour'
    LIMIT 100
  ) AS lately
$$;

CREATE FUNCTION fleet_event_bounded() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF fleet_server_has_too_many_events(NEW.environment, NEW.server) THEN
    RETURN NULL;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fleet_event_bounded BEFORE INSERT ON fleet_event
  FOR EACH ROW WHEN (pg_trigger_depth() > 0) EXECUTE FUNCTION fleet_event_bounded();
"""
UNBOUND = """
DROP TRIGGER fleet_event_bounded ON fleet_event;
DROP FUNCTION fleet_event_bounded();
DROP FUNCTION fleet_server_has_too_many_events(text, text);
"""

OWN_BREAKERS = """
CREATE FUNCTION fleet_server_own_breakers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF fleet_server_has_too_many_events(NEW.environment, NEW.name) THEN
    RETURN NULL;
  END IF;
  INSERT INTO fleet_event (environment, server, boot, kind, detail)
    SELECT NEW.environment, NEW.name, NEW.boot, 'breaker',
           left(dependency || ': ' || coalesce(earlier.state, 'closed') || ' -> ' || later.state, 500)
    FROM (SELECT DISTINCT ON (dependency) dependency, state, local
          FROM jsonb_to_recordset(NEW.breakers) AS view(dependency text, state text, local boolean)
          ORDER BY dependency) AS later
    LEFT JOIN (SELECT DISTINCT ON (dependency) dependency, state, local
               FROM jsonb_to_recordset(OLD.breakers) AS view(dependency text, state text, local boolean)
               ORDER BY dependency) AS earlier USING (dependency)
    WHERE (coalesce(later.local, false) OR coalesce(earlier.local, false) AND later.state = 'closed')
      AND coalesce(earlier.state, 'closed') <> later.state
    ORDER BY dependency
    -- A pod reports up to 500 breakers, every second if it wants to.
    LIMIT 10;
  RETURN NULL;
END $$;
CREATE TRIGGER fleet_server_own_breakers AFTER UPDATE OF breakers ON fleet_server
  FOR EACH ROW WHEN (OLD.breakers IS DISTINCT FROM NEW.breakers
    AND (NEW.breakers @> '[{"local": true}]' OR OLD.breakers @> '[{"local": true}]'))
  EXECUTE FUNCTION fleet_server_own_breakers();
"""
NO_OWN_BREAKERS = """
DROP TRIGGER fleet_server_own_breakers ON fleet_server;
DROP FUNCTION fleet_server_own_breakers();
"""


class Migration(migrations.Migration):
    initial = True

    replaces = [
        ("fleet", "0001_create_servers_and_figures"),
        ("fleet", "0002_know_drills"),
        ("fleet", "0003_keep_history_of_servers"),
        ("fleet", "0004_count_spending_pods"),
        ("fleet", "0005_give_orders_to_gateways"),
        ("fleet", "0006_note_own_breakers"),
        ("fleet", "0007_bound_events_of_pods"),
        ("fleet", "0008_leave_fleet_breakers_to_transitions"),
        ("fleet", "0009_show_load_of_pods"),
        ("fleet", "0010_keep_failed_calls"),
        ("fleet", "0011_show_identity_of_pods"),
        ("fleet", "0012_order_erasures"),
        ("fleet", "0013_show_uncounted_calls"),
        ("fleet", "0014_measure_redis"),
        ("fleet", "0015_show_locks_of_pods"),
        ("fleet", "0016_know_who_carries_counts"),
        ("fleet", "0017_show_uncharged_measures"),
        ("fleet", "0018_measure_cpu_of_redis"),
        ("fleet", "0019_know_what_vendors_state"),
        ("fleet", "0020_know_who_enforces_budgets"),
    ]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Figures",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gateway", models.CharField(max_length=100)),
                ("environment", models.CharField(max_length=64)),
                ("at", models.DateTimeField(db_default=Now())),
                ("document", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name_plural": "figures",
                "constraints": [models.UniqueConstraint(fields=("gateway", "environment"), name="fleet_figures_once")],
            },
        ),
        migrations.CreateModel(
            name="Server",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=64)),
                ("boot", models.CharField(max_length=64)),
                ("service", models.CharField(max_length=64)),
                ("zone", models.CharField(blank=True, default="", max_length=64)),
                ("agent_version", models.CharField(max_length=64)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("online", "Online"),
                            ("late", "Late"),
                            ("unknown", "Unknown"),
                            ("offline", "Offline"),
                            ("gone", "Gone"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[("shared", "shared"), ("local", "local"), ("ramping", "ramping"), ("drill", "drill")],
                        max_length=16,
                    ),
                ),
                ("mode_since", models.DateTimeField()),
                ("mode_cause", models.CharField(blank=True, default="", max_length=500)),
                ("epoch", models.BigIntegerField(default=0)),
                ("revision", models.BigIntegerField(default=0)),
                ("config_hash", models.CharField(blank=True, default="", max_length=64)),
                (
                    "config_status",
                    models.CharField(
                        choices=[("applied", "applied"), ("rejected", "rejected"), ("none", "none")], max_length=16
                    ),
                ),
                (
                    "config_source",
                    models.CharField(
                        choices=[
                            ("http", "http"),
                            ("redis", "redis"),
                            ("disk", "disk"),
                            ("bootstrap", "bootstrap"),
                            ("built_in", "built_in"),
                        ],
                        max_length=16,
                    ),
                ),
                ("config_error", models.CharField(blank=True, default="", max_length=500)),
                ("started_at", models.DateTimeField()),
                ("last_seen_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("left_at", models.DateTimeField(blank=True, null=True)),
                ("calls_per_s", models.FloatField(default=0.0)),
                ("redis_p99_us", models.IntegerField(blank=True, null=True)),
                ("breakers", models.JSONField(default=list)),
                ("gateway", models.CharField(blank=True, db_default="", default="", max_length=100)),
                ("rivals", models.IntegerField(db_default=0, default=0)),
                ("previous_boot", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("alternations", models.IntegerField(db_default=0, default=0)),
                ("alternated_at", models.DateTimeField(blank=True, null=True)),
                ("spending", models.IntegerField(db_default=1, default=1)),
                ("load", models.JSONField(db_default={}, default=dict)),
                ("token", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("address", models.CharField(blank=True, db_default="", default="", max_length=64)),
                ("share", models.JSONField(db_default={}, default=dict)),
                ("alone", models.JSONField(db_default={}, default=dict)),
                ("primitives", models.JSONField(null=True)),
                ("carries_counts", models.BooleanField(db_default=False, default=False)),
                ("uncharged", models.JSONField(db_default=[], default=list)),
                ("seen", models.JSONField(db_default=[], default=list)),
                ("enforces_budgets", models.BooleanField(db_default=False, default=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("environment", "name"), name="fleet_server_once"),
                    models.CheckConstraint(
                        condition=models.Q(("state__in", ["online", "late", "unknown", "offline", "gone"])),
                        name="fleet_server_state_known",
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("server", models.CharField(max_length=64)),
                ("boot", models.CharField(max_length=64)),
                ("at", models.DateTimeField(db_default=Now())),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("joined", "Joined"),
                            ("left", "Left"),
                            ("silent", "Fell silent"),
                            ("offline", "Offline"),
                            ("back", "Heard again"),
                            ("mode", "Mode changed"),
                            ("config_rejected", "Configuration refused"),
                            ("config_accepted", "Configuration taken"),
                            ("duplicate", "Two of one name"),
                            ("breaker", "Own breaker"),
                        ],
                        max_length=16,
                    ),
                ),
                ("detail", models.CharField(blank=True, db_default="", default="", max_length=500)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["environment", "server", "-at"], name="fleet_event_of_server"),
                    models.Index(fields=["at"], name="fleet_event_by_time"),
                    models.Index(
                        condition=models.Q(("kind__in", ("mode", "breaker"))),
                        fields=["environment", "-at", "-id"],
                        name="fleet_event_recent",
                    ),
                ]
            },
        ),
        migrations.CreateModel(
            name="GatewayOrder",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                (
                    "kind",
                    models.CharField(
                        choices=[("forget", "Forget"), ("lift_freeze", "Lift Freeze"), ("erase", "Erase")],
                        max_length=16,
                    ),
                ),
                ("server", models.CharField(blank=True, max_length=64)),
                ("at", models.DateTimeField(db_default=Now())),
            ],
            options={"indexes": [models.Index(fields=["at"], name="fleet_order_by_time")]},
        ),
        migrations.CreateModel(
            name="FailedCalls",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gateway", models.CharField(max_length=100)),
                ("environment", models.CharField(max_length=64)),
                ("dependency", models.CharField(max_length=64)),
                ("at", models.DateTimeField(db_default=Now())),
                ("document", models.JSONField(default=dict)),
            ],
            options={
                "verbose_name_plural": "failed calls",
                "indexes": [models.Index(fields=["at"], name="fleet_failed_calls_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("environment", "dependency", "gateway"), name="fleet_failed_calls_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RedisNode",
            fields=[
                ("address", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("role", models.CharField(max_length=16)),
                ("up", models.BooleanField()),
                ("run_id", models.CharField(blank=True, max_length=64)),
                ("commands", models.BigIntegerField()),
                ("ops_per_s", models.FloatField(null=True)),
                ("memory_bytes", models.BigIntegerField()),
                ("memory_limit_bytes", models.BigIntegerField()),
                ("lag_s", models.FloatField(null=True)),
                ("read_at", models.DateTimeField()),
                ("cpu_s", models.FloatField(null=True)),
                ("cpu_share", models.FloatField(null=True)),
            ],
        ),
        # Rows are rewritten every few seconds: half-empty pages let Postgres do it in place (HOT).
        migrations.RunSQL(
            "ALTER TABLE fleet_server SET (fillfactor = 50)", "ALTER TABLE fleet_server RESET (fillfactor)"
        ),
        migrations.RunSQL(TURNS, NO_TURNS),
        migrations.RunSQL(NOTE, NO_NOTE),
        migrations.RunSQL(BOUND, UNBOUND),
        migrations.RunSQL(OWN_BREAKERS, NO_OWN_BREAKERS),
    ]
