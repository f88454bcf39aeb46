"""Incidents: alerts of one cause, what people did about them, and one line of time."""
