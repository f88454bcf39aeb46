"""The question to Redis: callers of one event-loop tick are gathered into one script call."""
