"""Use the embedded servers: start or join them, and leave them."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from controlplane import installation
from controlplane.embedded.children import ServerFailed
from controlplane.embedded.keeper import KEEPER_LOCK, RUN_FILE, USERS_LOCK, lock_at_once

FOLDER = Path(os.environ.get("FUSEBOARD_DATA_DIR") or installation.default_data_dir())

#: Environment variable -> (folder of the server, kind of server).
SERVERS = {
    "DATABASE_URL": ("postgres", "postgres"),
    "FUSEBOARD_REDIS_URL": ("limits", "valkey"),
    "FUSEBOARD_BROKER_URL": ("broker", "valkey"),
}


@dataclass(frozen=True)
class Running:
    """A running server, as its keeper recorded it."""

    url: str
    #: Process numbers of the keeper and of the server.
    keeper: int
    server: int


def configured() -> dict[str, str]:
    """The configured servers, by variable or by the file it names: variable -> URL.

    Raises ``ServerFailed`` if a file cannot be read.
    """
    found = {}
    for variable in SERVERS:
        url = os.environ.get(variable, "")
        file = os.environ.get(f"{variable}_FILE", "")
        if file:
            try:
                url = Path(file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ServerFailed(f"{variable}_FILE names a file that cannot be read as text.") from error
        if url:
            found[variable] = url
    return found


def unconfigured() -> list[str]:
    """The variables of servers that are not configured."""
    return [variable for variable in SERVERS if variable not in configured()]


@contextmanager
def running(
    variables: list[str] | None = None, *, folder: Path = FOLDER, forgetful: bool = False
) -> Iterator[dict[str, str]]:
    """Run the servers of ``variables`` (by default the unconfigured ones) while the block runs.

    Their addresses are exported as environment variables and returned: variable -> URL. Several
    processes may do this at once: the first starts the servers, the last stops them. ``forgetful``
    trades the safety of the data for speed. Raises ``ServerFailed``.
    """
    wanted = unconfigured() if variables is None else variables
    before = {variable: os.environ.get(variable) for variable in wanted}
    joined = {variable: _Membership(folder / SERVERS[variable][0]) for variable in wanted}
    try:
        for variable, membership in joined.items():
            membership.join(SERVERS[variable][1], forgetful=forgetful)
        urls = {variable: membership.await_url() for variable, membership in joined.items()}
        os.environ.update(urls)
        yield urls
    finally:
        for variable, value in before.items():
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value
        for membership in joined.values():
            membership.leave()
        for membership in joined.values():
            membership.await_end()


def look_up(variable: str, *, folder: Path = FOLDER) -> Running:
    """Where the server of ``variable`` runs. Raises ``ServerFailed`` when it does not run."""
    try:
        document = json.loads((folder / SERVERS[variable][0] / RUN_FILE).read_text())
    except FileNotFoundError:
        raise ServerFailed(f"No embedded server runs for {variable}.") from None
    return Running(**document)


def revive(variable: str, *, folder: Path = FOLDER, within_s: float = 10.0) -> Running:
    """Restart a server that was killed, at the same address. Raises ``ServerFailed``."""
    before = look_up(variable, folder=folder)
    os.kill(before.keeper, signal.SIGHUP)
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        now = look_up(variable, folder=folder)
        if now.server != before.server:
            return now
        time.sleep(0.02)
    raise ServerFailed(f"The embedded server for {variable} did not come back within {within_s} s.")


class _Membership:
    """This process's use of one server: a lock that the operating system releases when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: IO[str] | None = None
        self._start: IO[str] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def join(self, kind: str, *, forgetful: bool) -> None:
        """Become a user; start a keeper if there is none, without waiting for it."""
        # The folder above too: ``parents`` would make it readable by others.
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._folder.chmod(0o700)
        self._lock = _open_lock(self._folder / USERS_LOCK)
        # Waits while a keeper without users stops its server.
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        # Held until the server answers, so that a second process waits for this keeper.
        self._start = _open_lock(self._folder / "start.lock")
        fcntl.flock(self._start, fcntl.LOCK_EX)
        if self._is_kept():
            return
        command = [sys.executable, "-m", "controlplane.embedded", kind, str(self._folder)]
        self._keeper = subprocess.Popen(  # noqa: S603 - our own command
            [*command, *(["--forgetful"] if forgetful else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=installation.FOLDER,
            start_new_session=True,
        )

    def await_url(self) -> str:
        if self._keeper is not None:
            said = b"".join(self._keeper.stdout or ()).decode(errors="replace")
            if said != "ready":
                log = self._folder / "log"
                raise ServerFailed(said or f"The keeper of {self._folder.name} failed; see {log}")
        if self._start is not None:
            self._start.close()
        return str(json.loads((self._folder / RUN_FILE).read_text())["url"])

    def leave(self) -> None:
        """Stop being a user."""
        for lock in (self._start, self._lock):
            if lock is not None:
                lock.close()

    def await_end(self) -> None:
        """After ``leave``: if this was the last user, wait until the server has stopped."""
        if self._lock is None:
            return
        deadline = time.monotonic() + 30.0
        while self._is_kept() and not self._has_users() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self._keeper is not None and not self._is_kept():
            self._keeper.wait()
            if self._keeper.stdout is not None:
                self._keeper.stdout.close()

    def _is_kept(self) -> bool:
        return not _can_lock(self._folder / KEEPER_LOCK, fcntl.LOCK_SH)

    def _has_users(self) -> bool:
        users = self._folder / USERS_LOCK
        return not _can_lock(users, fcntl.LOCK_EX) and _can_lock(users, fcntl.LOCK_SH)


def _open_lock(path: Path) -> IO[str]:
    path.touch(mode=0o600)
    return path.open("a")


def _can_lock(path: Path, how: int) -> bool:
    with _open_lock(path) as file:
        return lock_at_once(file, how)
