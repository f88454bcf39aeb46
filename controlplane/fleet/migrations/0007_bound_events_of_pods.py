"""A pod decides what it reports, so its events are bounded: 100 per hour, whatever it reports."""

from django.db import migrations, models

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

# Gateways refuse a dependency that is named twice; rows that are older can contain one.
NOTE = """
CREATE OR REPLACE FUNCTION fleet_server_own_breakers() RETURNS trigger LANGUAGE plpgsql AS $$
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
    WHERE (coalesce(later.local, false) OR coalesce(earlier.local, false))
      AND coalesce(earlier.state, 'closed') <> later.state
    ORDER BY dependency
    -- A pod reports up to 500 breakers, every second if it wants to.
    LIMIT 10;
  RETURN NULL;
END $$;
"""

NOTE_OF_0006 = """
CREATE OR REPLACE FUNCTION fleet_server_own_breakers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO fleet_event (environment, server, boot, kind, detail)
    SELECT NEW.environment, NEW.name, NEW.boot, 'breaker',
           left((later.view ->> 'dependency') || ': ' || coalesce(earlier.view ->> 'state', 'closed')
                || ' -> ' || (later.view ->> 'state'), 500)
    FROM jsonb_array_elements(NEW.breakers) AS later(view)
    LEFT JOIN jsonb_array_elements(OLD.breakers) AS earlier(view)
      ON earlier.view ->> 'dependency' = later.view ->> 'dependency'
    WHERE (coalesce((later.view ->> 'local')::boolean, false)
           OR coalesce((earlier.view ->> 'local')::boolean, false))
      AND coalesce(earlier.view ->> 'state', 'closed') <> (later.view ->> 'state')
    ORDER BY later.view ->> 'dependency'
    LIMIT 10;
  RETURN NULL;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0006_note_own_breakers")]

    operations = [
        migrations.AddIndex(
            "event",
            models.Index(
                fields=["environment", "-at", "-id"],
                condition=models.Q(kind__in=("mode", "breaker")),
                name="fleet_event_recent",
            ),
        ),
        migrations.RunSQL(BOUND, UNBOUND),
        migrations.RunSQL(NOTE, NOTE_OF_0006),
    ]
