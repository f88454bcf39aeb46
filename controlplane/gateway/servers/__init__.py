"""The fleet in memory: every server, its liveness, rates and figures."""
