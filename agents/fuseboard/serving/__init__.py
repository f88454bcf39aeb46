"""Code that servers in front of an agent share: bytes, sockets and coroutines. It knows nothing of limits."""
