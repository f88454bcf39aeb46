"""Locks and idempotency keys for services: what one pod cannot decide alone."""
