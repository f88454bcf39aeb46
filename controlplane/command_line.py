"""The commands of the control plane, around embedded servers where none are configured.

``manage.py`` of a checkout and ``fuseboard-server`` of an installation are this.
"""

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from controlplane import embedded, installation

#: Commands that touch no server.
OFFLINE = {"help", "collectstatic", "compilemessages", "findstatic", "redis_acl", "write_monitoring"}

#: Commands that run while Postgres is away: to them it is news, and no error. Settings are checked anyway.
ENDURING = {"web", "gateway", "worker", "beat", "check"}

#: Commands that use the queue: requests never enqueue tasks.
QUEUEING = {"worker", "beat"}


def main(servers: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
    """Run the command of ``sys.argv``. ``servers`` are run around it, whatever is configured."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if command in ("version", "--version"):
        sys.stdout.write(f"{Path(sys.argv[0]).name} {installation.version()}\n")
        return
    from controlplane.management.commands_loaded import Commands

    # A reader of a pipe gets each line at once, as on a terminal.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # a text file, as any process has
    if command in OFFLINE or {"-h", "--help"} & set(sys.argv):
        installation.sign_nothing()
        Commands(sys.argv).execute()
        return
    try:
        if servers is None:
            _name_what_is_unreachable(command)
            servers = partial(embedded.running, _missing(command))
        with servers():
            Commands(sys.argv).execute()
    except embedded.ServerFailed as failure:
        sys.exit(str(failure))


def _missing(command: str) -> list[str]:
    """The variables of servers that are started, because the command needs them and none is configured."""
    found = embedded.unconfigured()
    # A web process beside other stores need not know the queue.
    return [] if found == ["FUSEBOARD_BROKER_URL"] and command not in QUEUEING else found


def _name_what_is_unreachable(command: str) -> None:
    """Name each configured server that does not answer; without Postgres most commands end here."""
    from controlplane.embedded import reachable

    problems = reachable.problems()
    for problem in problems.values():
        sys.stderr.write(problem + "\n")
    if "DATABASE_URL" in problems and command not in ENDURING:
        sys.exit(1)
