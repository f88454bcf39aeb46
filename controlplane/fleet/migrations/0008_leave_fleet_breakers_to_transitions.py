"""A pod that follows the fleet again notes no breaker that the fleet opened: its transition shows that.

What remains is what the pod's own breaker did, and that it ended, closed, as the pod returned.
"""

from django.db import migrations

_FUNCTION = """
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
    WHERE (coalesce(later.local, false) OR coalesce(earlier.local, false){closed})
      AND coalesce(earlier.state, 'closed') <> later.state
    ORDER BY dependency
    -- A pod reports up to 500 breakers, every second if it wants to.
    LIMIT 10;
  RETURN NULL;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0007_bound_events_of_pods")]

    operations = [
        migrations.RunSQL(
            _FUNCTION.replace("{closed}", " AND later.state = 'closed'"),
            _FUNCTION.replace("{closed}", ""),
        ),
    ]
