"""Parts that servers in front of an agent share: bytes, sockets and coroutines. They know nothing of limits."""
