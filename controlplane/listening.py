"""Where a process listens: the port it was given, or another when that one is in use."""

import socket
from collections.abc import Callable

from django.core.management.base import CommandError


def listen(
    host: str, port: int, *, exactly: bool, say: Callable[[str], object], backlog: int = 2048
) -> socket.socket:
    """Open a socket that listens on ``port`` of ``host``; 0 lets the system choose.

    When the port is unavailable, report it to ``say`` and use another; with ``exactly``, raise
    ``CommandError`` instead.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        if exactly or port == 0:
            raise CommandError(f"Cannot listen on {host}, port {port}: {error.strerror}") from error
        say(f"Port {port} is unavailable ({error.strerror}); using another.")
        return listen(host, 0, exactly=True, say=say, backlog=backlog)
