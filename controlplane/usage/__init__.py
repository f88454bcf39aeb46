"""What tenants asked for, allowed or not, and what an edit would have done with it."""
