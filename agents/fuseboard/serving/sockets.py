"""Unix sockets: their file, and the process at the other end."""

import os
import socket
import stat
import struct

#: Owner and group may connect.
MODE = 0o660
#: Linux reports the peer of a unix socket: its process, user and group.
KNOWS_PEERS = hasattr(socket, "SO_PEERCRED")
_CREDENTIALS = struct.Struct("3i")


def unix_socket(path: str) -> socket.socket:
    """A socket at ``path``, in place of one that no process listens on. Raises ``OSError``.

    It has its mode before any process can connect.
    """
    remove_unused(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        os.chmod(path, MODE)
    except BaseException:
        sock.close()
        raise
    return sock


def peer_uid(sock: socket.socket | None) -> int | None:
    """The user of the process at the other end of a unix socket; ``None`` for other sockets."""
    if sock is None or not KNOWS_PEERS or sock.family != socket.AF_UNIX:
        return None
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(found)[1]
    return uid


def remove_unused(path: str) -> None:
    """Remove the socket at ``path`` if no process listens on it. Raises ``OSError``."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return  # bind names the problem
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return  # a process listens, and does not accept: bind names the problem
        except ConnectionRefusedError:
            os.unlink(path)
