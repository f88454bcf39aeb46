"""The fault matrix: real processes, and faults injected into them. ``make faults`` runs all of it."""
