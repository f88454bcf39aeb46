"""A chain's head moves once per transaction, not with every entry.

A row that is updated again and again within one transaction drags all its versions along, as nobody may remove
them yet: 100,000 rows written with SQL took minutes. Until the commit, the newest entry is looked up instead.
"""

from django.db import migrations

# The head stays the lock, and what the first entry of a transaction follows: an entry removed from the end
# of the chain leaves a gap. Without index a lookup would read every entry, as is planned while there are few.
SEAL = """
CREATE OR REPLACE FUNCTION audit_seal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
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

EARLIER = """
DROP TRIGGER audit_move_head ON audit_entry;
DROP FUNCTION audit_move_head();
CREATE OR REPLACE FUNCTION audit_seal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
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
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0003_seal_with_the_owners_rights")]

    operations = [migrations.RunSQL(SEAL, EARLIER)]
