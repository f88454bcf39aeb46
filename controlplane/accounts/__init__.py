"""People and their roles, tokens of agents and programs."""
