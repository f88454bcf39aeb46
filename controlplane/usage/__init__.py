"""Requests of tenants, allowed or not, and the effect that an edit would have had on them."""
