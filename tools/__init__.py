"""What helps to work on Fuseboard, and the demo: nothing that a deployment needs."""
