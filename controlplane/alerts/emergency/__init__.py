"""Alerts of level 3 without Postgres and without a worker: what gateways keep, decide, and hand in later."""
