"""The real web process on the tests' database."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from django.db import connection

from tools.demo.processes import Process, Processes


def database_url() -> str:
    """The tests' database, as other processes name it."""
    test = connection.settings_dict
    password = quote(test["PASSWORD"], safe="")
    return f"postgresql://{test['USER']}:{password}@{test['HOST']}:{test['PORT']}/{test['NAME']}"


@contextmanager
def web_running(folder: Path, **variables: str) -> Iterator[Processes]:
    """Its address is ``processes.by_name["web"].url``."""
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(folder),
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_LOG_LEVEL": "WARNING",
        **variables,
    }
    processes = Processes(folder / "logs")
    arguments = ["manage.py", "web", "--exactly", "--port", "{port}"]
    processes.add(Process("web", arguments, environment, health="/healthz"))
    try:
        processes.begin("web")
        processes.wait_until_ready(["web"])
        yield processes
    finally:
        processes.stop("web")
