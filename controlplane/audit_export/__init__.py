"""How far audit entries were exported to a system outside, such as a SIEM: in order, and at least once."""
