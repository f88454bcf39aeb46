"""From Postgres to Redis: revisions, the outbox, compare-and-set."""
