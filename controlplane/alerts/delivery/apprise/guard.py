"""Everything that the sender may do: connect to public addresses, and nothing else with the system.

The hook sees every connection of Python code, of ``requests`` and ``smtplib`` too, after names are resolved,
so that a redirect or a name that changes its address gains nothing. It cannot be removed. Libraries that
connect in C would pass it: the sender has none.
"""

import os
import sys
from collections.abc import Iterable
from typing import Any

from controlplane.alerts.delivery.addresses import AddressRefused, Network, is_public

#: Events of programs, of other processes, and of packets without a connection.
_NEVER = frozenset(
    (
        *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system"),
        *("pty.spawn", "subprocess.Popen", "socket.sendmsg", "socket.sendto"),
        *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown"),
    )
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class NotAllowed(Exception):
    """The sender must not do this."""


class Guard:
    """Refuses in this process from ``install`` on, until it ends."""

    def __init__(self, allowed: Iterable[Network] = ()) -> None:
        self._allowed = tuple(allowed)
        #: Everything that was refused since ``begin``: libraries catch the exception.
        self.refused: list[str] = []

    def install(self) -> None:
        # Compiled modules would be written beside their sources.
        sys.dont_write_bytecode = True
        sys.addaudithook(self.judge)

    def begin(self) -> None:
        self.refused = []

    def judge(self, event: str, args: tuple[Any, ...]) -> None:
        """Raises ``AddressRefused`` or ``NotAllowed``."""
        if event == "socket.connect":
            self._connect(args)
        elif event == "open":
            self._open(args)
        elif event in _NEVER:
            self._refuse(NotAllowed(f"the sender does not use {event}"))

    def _connect(self, args: tuple[Any, ...]) -> None:
        address = args[1]
        # A path is a local socket. A name here would be resolved after this check.
        host = str(address[0]) if isinstance(address, tuple) and address else "a local socket"
        if not is_public(host, self._allowed):
            self._refuse(AddressRefused("The receiver", host))

    def _open(self, args: tuple[Any, ...]) -> None:
        path, mode, flags = args
        writes = isinstance(mode, str) and any(sign in mode for sign in "wax+")
        if (writes or (mode is None and flags & _WRITES)) and path != os.devnull:
            self._refuse(NotAllowed("the sender writes no file"))

    def _refuse(self, error: Exception) -> None:
        self.refused.append(str(error))
        raise error
