"""What happened to servers is kept; servers of several gateways are told apart."""

import django.db.models.functions.datetime
from django.db import migrations, models

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


class Migration(migrations.Migration):
    dependencies = [("fleet", "0002_know_drills")]

    operations = [
        migrations.AddField("server", "gateway", models.CharField(blank=True, db_default="", default="", max_length=100)),
        migrations.AddField("server", "rivals", models.IntegerField(db_default=0, default=0)),
        migrations.AddField(
            "server", "previous_boot", models.CharField(blank=True, db_default="", default="", max_length=64)
        ),
        migrations.AddField("server", "alternations", models.IntegerField(db_default=0, default=0)),
        migrations.AddField("server", "alternated_at", models.DateTimeField(blank=True, null=True)),
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment", models.CharField(max_length=64)),
                ("server", models.CharField(max_length=64)),
                ("boot", models.CharField(max_length=64)),
                ("at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
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
                ],
            },
        ),
        migrations.RunSQL(TURNS, "DROP TRIGGER fleet_server_turns ON fleet_server; DROP FUNCTION fleet_server_turns();"),
        migrations.RunSQL(
            NOTE,
            "DROP TRIGGER fleet_server_joined ON fleet_server; DROP TRIGGER fleet_server_changed ON fleet_server;"
            " DROP FUNCTION fleet_server_note();",
        ),
    ]
