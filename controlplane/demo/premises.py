"""Where the demo plays: servers of its own, always, so that it never touches anything real."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane import embedded

#: Every process of a demo carries this variable, by which the last checkpoint finds those left behind.
MARK = "FUSEBOARD_DEMO"


@contextmanager
def premises(*, check: bool) -> Iterator[Path]:
    """Run the embedded servers, whatever the environment configures, and export them.

    ``check`` begins with empty servers in a folder of their own, removed when all went well.
    """
    for name in list(os.environ):
        if name.startswith(("FUSEBOARD_", "DATABASE_URL")):
            del os.environ[name]
    folder = embedded.FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    if check:
        folder = Path(tempfile.mkdtemp(prefix="check-", dir=folder))
    os.environ[MARK] = secrets.token_hex(8)
    os.environ["FUSEBOARD_DATA_DIR"] = str(folder)
    # This process talks to people; the others write logs.
    os.environ["FUSEBOARD_LOG_LEVEL"] = "WARNING"
    # A browser on this machine, without TLS.
    os.environ["FUSEBOARD_PLAIN_HTTP"] = "1"
    with embedded.running(list(embedded.SERVERS), folder=folder):
        yield folder
    if check:
        shutil.rmtree(folder)
