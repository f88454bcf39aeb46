"""The own breaker of a pod opens and closes: noted, because no transition of the fleet shows it."""

from django.db import migrations, models

NOTE = """
CREATE FUNCTION fleet_server_own_breakers() RETURNS trigger LANGUAGE plpgsql AS $$
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
    -- A pod reports up to 500 breakers, every second if it wants to.
    LIMIT 10;
  RETURN NULL;
END $$;
CREATE TRIGGER fleet_server_own_breakers AFTER UPDATE OF breakers ON fleet_server
  FOR EACH ROW WHEN (OLD.breakers IS DISTINCT FROM NEW.breakers
    AND (NEW.breakers @> '[{"local": true}]' OR OLD.breakers @> '[{"local": true}]'))
  EXECUTE FUNCTION fleet_server_own_breakers();
"""


class Migration(migrations.Migration):
    dependencies = [("fleet", "0005_give_orders_to_gateways")]

    operations = [
        migrations.AlterField(
            "event",
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
        migrations.RunSQL(
            NOTE,
            "DROP TRIGGER fleet_server_own_breakers ON fleet_server; DROP FUNCTION fleet_server_own_breakers();",
        ),
    ]
