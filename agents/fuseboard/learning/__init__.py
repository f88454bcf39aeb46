"""Reads what vendors say about their limits. Imported when the first client is guarded."""
