"""The state of alerts over time: what fires now, what explains it, mutes, and flapping."""
