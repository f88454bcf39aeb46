"""The weekly summary: what was refused, open, too low, never reached or flapping, with a suggestion each."""
