"""Decisions without Redis, and the report of them when Redis returns."""
