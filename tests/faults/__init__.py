"""The fault matrix: real processes, and what is done to them. ``make faults`` plays all of it."""
