"""Sends every audit entry to a system outside, such as a SIEM, in order and at least once."""
