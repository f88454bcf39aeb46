"""Rows of the configuration: checked, and written within a revision."""
