"""Drills: chosen pods simulate a slow or unreachable Redis for a while."""
