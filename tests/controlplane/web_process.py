"""The real web process on the tests' database."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from django.db import connection

from controlplane.demo.processes import Actor, Troupe


def database_url() -> str:
    """The tests' database, as other processes name it."""
    test = connection.settings_dict
    password = quote(test["PASSWORD"], safe="")
    return f"postgresql://{test['USER']}:{password}@{test['HOST']}:{test['PORT']}/{test['NAME']}"


@contextmanager
def web_running(folder: Path) -> Iterator[Troupe]:
    """Its address is ``troupe.actors["web"].url``."""
    environment = os.environ | {
        "DATABASE_URL": database_url(),
        "FUSEBOARD_DATA_DIR": str(folder),
        "FUSEBOARD_PLAIN_HTTP": "1",
        "FUSEBOARD_LOG_LEVEL": "WARNING",
    }
    troupe = Troupe(folder / "logs")
    arguments = ["manage.py", "web", "--exactly", "--port", "{port}"]
    troupe.add(Actor("web", arguments, environment, health="/healthz"))
    try:
        troupe.begin("web")
        troupe.await_answers(["web"])
        yield troupe
    finally:
        troupe.dismiss("web")
