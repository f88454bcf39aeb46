"""The servers and data of the demo: always separate, so that it never touches anything real."""

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane import embedded
from controlplane.embedded.keeper import lock_at_once
from tools.demo.progress import say

#: Every process of a demo has this variable, by which the last checkpoint finds leftover processes.
MARK = "FUSEBOARD_DEMO"


class Occupied(embedded.ServerFailed):
    """Another demo uses the same data."""


@contextmanager
def run_embedded_servers(*, check: bool) -> Iterator[Path]:
    """Run the embedded servers, whatever the environment configures, and export their URLs.

    ``check`` starts with empty servers in a temporary folder, which is removed on success.
    """
    for name in list(os.environ):
        # A proxy would also be used for addresses of this machine.
        if name.startswith(("FUSEBOARD_", "DATABASE_URL")) or name.lower().endswith("_proxy"):
            del os.environ[name]
    # Logs, plans and files of pods are private. Every process of the demo inherits this.
    os.umask(0o077)
    folder = embedded.FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if check:
        folder = Path(tempfile.mkdtemp(prefix="check-", dir=folder))
    os.environ[MARK] = secrets.token_hex(8)
    os.environ["FUSEBOARD_DATA_DIR"] = str(folder)
    # This process prints for people; the others write logs.
    os.environ["FUSEBOARD_LOG_LEVEL"] = "WARNING"
    # A browser on this machine, without TLS.
    os.environ["FUSEBOARD_PLAIN_HTTP"] = "1"
    with (folder / "demo.lock").open("w") as alone:
        if not lock_at_once(alone, fcntl.LOCK_EX):
            raise Occupied(f"A demo is already running with the data in {folder}: use it, or stop it first.")
        new = "" if (folder / "postgres/data").exists() else ", and creating an empty database"
        say(f"Starting Postgres and two Valkeys{new}")
        with embedded.running(list(embedded.SERVERS), folder=folder):
            yield folder
    if check:
        shutil.rmtree(folder)
