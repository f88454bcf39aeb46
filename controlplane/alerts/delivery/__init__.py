"""Sends news of alerts to receivers."""
