"""What the answers of a vendor say about its limits. Imported when the first client is guarded."""
