"""The checklist before a deployment, answered from the live configuration and what the fleet reports."""
