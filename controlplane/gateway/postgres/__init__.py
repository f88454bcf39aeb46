"""What the gateway writes to Postgres and reads from it, off the path of a heartbeat."""
