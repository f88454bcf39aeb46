"""What arrives and leaves: names, tokens, limits and problems of a heartbeat request."""
