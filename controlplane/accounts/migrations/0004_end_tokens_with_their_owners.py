"""A new account never inherits the API tokens of an earlier account with the same name."""

from django.db import migrations

REVOKE = """
CREATE FUNCTION accounts_revoke_inherited() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE accounts_apitoken SET revoked_at = now() WHERE owner = NEW.username AND revoked_at IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER accounts_revoke_inherited AFTER INSERT ON accounts_user
  FOR EACH ROW EXECUTE FUNCTION accounts_revoke_inherited();
CREATE TRIGGER accounts_revoke_inherited_by_name AFTER UPDATE ON accounts_user
  FOR EACH ROW WHEN (OLD.username <> NEW.username) EXECUTE FUNCTION accounts_revoke_inherited();
"""
DROP = """
DROP TRIGGER accounts_revoke_inherited_by_name ON accounts_user;
DROP TRIGGER accounts_revoke_inherited ON accounts_user;
DROP FUNCTION accounts_revoke_inherited();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_know_owners_of_tokens")]

    operations = [migrations.RunSQL(REVOKE, DROP)]
