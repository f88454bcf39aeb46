"""Fuseboard in one line: middleware for ASGI applications, a transport for httpx clients."""
