"""Requests that pods allowed without Redis, copied from Redis, and those of them over the limits."""
