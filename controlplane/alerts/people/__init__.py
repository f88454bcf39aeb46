"""Decisions of people about alerts: routes, mutes, acknowledgements, and the settings of rules."""
