"""Reads and writes of Postgres, off the path of a heartbeat."""
