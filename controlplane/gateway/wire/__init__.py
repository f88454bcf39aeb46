"""The request of a heartbeat: names, tokens, limits and problems."""
