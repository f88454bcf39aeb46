"""What is known of an alert over time: what fires now, what explains it, mutes, and flapping."""
