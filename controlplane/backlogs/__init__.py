"""Backlogs of dependencies, as operators see them: read from Redis into Postgres, and dead jobs put back."""
