"""Instructions for alerts: the shipped runbooks, the edited ones, and their format."""
