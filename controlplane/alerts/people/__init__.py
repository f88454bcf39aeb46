"""What people decide about alerts: routes, mutes, acknowledgements, and the settings of rules."""
