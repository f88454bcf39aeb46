"""Scheduled changes and temporary quotas: announced, applied or ended, with an alert when that fails."""
