"""Repairs Redis when it differs from Postgres: the sweep, the reconciler, restores."""
