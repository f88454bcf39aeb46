"""The order of one decision: what this pod knows, one question to Redis, or this pod alone."""
