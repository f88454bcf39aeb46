"""Overrides of breakers, and the history of breakers."""
