"""What pods allowed without Redis, copied from Redis, and how much of it was over the limits."""
