"""Runs one server while it has users: ``python -m controlplane.embedded``.

Every user of a server holds a shared lock on ``users.lock``. The operating system releases the lock
when the user ends, also on ``kill -9``. When the keeper gets the lock exclusively, there is no user
left and it stops the server. If the keeper itself is killed, Linux signals its server.

SIGHUP restarts a server that died, at the same address.
"""

import argparse
import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import IO, Protocol

from controlplane.embedded.children import ServerFailed
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.valkey import Valkey

USERS_LOCK = "users.lock"
KEEPER_LOCK = "keeper.lock"
RUN_FILE = "run.json"

#: How often the keeper checks for users.
_LOOK_S = 0.2


class Server(Protocol):
    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("kind", choices=["postgres", "valkey"])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--forgetful", action="store_true")
    chosen = arguments.parse_args()
    folder: Path = chosen.folder
    # Logs and data are private, also those of the server.
    os.umask(0o077)

    # The starter gave us its pipe; the server's output must not go there.
    starter = os.fdopen(os.dup(1), "w")
    with (folder / "log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)

    server: Server = (
        Postgres(folder, durable=not chosen.forgetful) if chosen.kind == "postgres" else Valkey(folder)
    )
    with (folder / KEEPER_LOCK).open("w") as keeper_lock, (folder / USERS_LOCK).open("a") as users_lock:
        if not _lock_within(keeper_lock, seconds=2.0):
            starter.write(f"Another process was already starting the server in {folder}: try again.")
            return 1
        try:
            _keep(server, folder, users_lock, starter)
        except ServerFailed as failure:
            starter.write(str(failure))
            return 1
        finally:
            server.stop()
            (folder / RUN_FILE).unlink(missing_ok=True)
            # In this order: the next process to get the users' lock must find ours free.
            keeper_lock.close()
    return 0


def _keep(server: Server, folder: Path, users_lock: IO[str], starter: IO[str]) -> None:
    """Run until SIGTERM, or until there is no user left."""
    wake = threading.Event()
    asked: set[signal.Signals] = set()

    def note(number: int, _frame: object) -> None:
        asked.add(signal.Signals(number))
        wake.set()

    for wanted in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(wanted, note)
    server.start()
    _write_run_file(server, folder)
    starter.write("ready")
    starter.close()
    while not asked & {signal.SIGTERM, signal.SIGINT} and not lock_at_once(users_lock, fcntl.LOCK_EX):
        wake.wait(_LOOK_S)
        wake.clear()
        if signal.SIGHUP in asked:
            asked.discard(signal.SIGHUP)
            server.stop()
            server.start()
            _write_run_file(server, folder)


def _write_run_file(server: Server, folder: Path) -> None:
    process = getattr(server, "process", None)
    document = {"url": server.url, "keeper": os.getpid(), "server": process.pid if process else None}
    unfinished = folder / (RUN_FILE + ".new")
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(document))
    unfinished.replace(folder / RUN_FILE)


def lock_at_once(file: IO[str], how: int) -> bool:
    """Take a lock if it is free."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(file: IO[str], *, seconds: float) -> bool:
    # Not at once: a leaving user may hold this lock for an instant.
    deadline = time.monotonic() + seconds
    while not lock_at_once(file, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
