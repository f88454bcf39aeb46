"""Whoever writes entries needs no right on the heads of the chains: only the table's owner has it."""

from django.db import migrations

DEFINER = """
ALTER FUNCTION audit_seal() SECURITY DEFINER;
ALTER FUNCTION audit_seal() SET search_path FROM CURRENT;
ALTER FUNCTION audit_direct_write() SECURITY DEFINER;
ALTER FUNCTION audit_direct_write() SET search_path FROM CURRENT;
"""
INVOKER = """
ALTER FUNCTION audit_seal() SECURITY INVOKER;
ALTER FUNCTION audit_seal() RESET search_path;
ALTER FUNCTION audit_direct_write() SECURITY INVOKER;
ALTER FUNCTION audit_direct_write() RESET search_path;
"""


class Migration(migrations.Migration):
    dependencies = [("audit", "0002_chain_entries")]

    operations = [migrations.RunSQL(DEFINER, INVOKER)]
