"""Drills: chosen servers pretend for a while that Redis is slow or gone."""
