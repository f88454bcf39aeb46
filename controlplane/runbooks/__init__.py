"""What to do when an alert fires: the shipped runbooks, what people made of them, and their format."""
