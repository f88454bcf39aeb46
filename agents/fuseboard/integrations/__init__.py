"""Fuseboard in one line: middleware for web applications, guards for HTTP clients."""
