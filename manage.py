#!/usr/bin/env python
"""Runs the control plane's commands, around embedded servers where none are configured."""

import os
import secrets
import sys

# For users of an older Python: nothing here that Python 3.5 cannot parse.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("Fuseboard needs Python 3.11 or newer; this is {}.{}.".format(*sys.version_info[:2]))

#: Commands that touch no server.
OFFLINE = {"help", "version", "--version", "collectstatic", "compilemessages", "findstatic", "redis_acl"}

#: Those that run while Postgres is away: to them it is news, not an error. Settings are checked without it.
ENDURING = {"web", "gateway", "worker", "check"}


def main():  # type: () -> None
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    from django.core.management import execute_from_command_line

    # A reader of a pipe gets each line at once, as on a terminal.
    sys.stdout.reconfigure(line_buffering=True)
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if command in OFFLINE or {"-h", "--help"} & set(sys.argv):
        sign_nothing()
        execute_from_command_line(sys.argv)
        return

    from controlplane import embedded

    try:
        if command == "demo":
            from tools.demo.data_dir import run_embedded_servers

            with run_embedded_servers(check=bool({"--check", "--check-all"} & set(sys.argv))):
                execute_from_command_line(sys.argv)
            return
        name_what_is_unreachable(command)
        with embedded.running():
            execute_from_command_line(sys.argv)
    except embedded.ServerFailed as failure:
        sys.exit(str(failure))


def sign_nothing():  # type: () -> None
    """Keep the settings from writing a secret key: the command needs none, and the disk may be read-only."""
    if not os.environ.get("FUSEBOARD_SECRET_KEY") and not os.environ.get("FUSEBOARD_SECRET_KEY_FILE"):
        os.environ["FUSEBOARD_SECRET_KEY"] = secrets.token_hex(32)


def name_what_is_unreachable(command):  # type: (str) -> None
    """Say which configured server does not answer; without Postgres most commands end here."""
    from controlplane.embedded import reachable

    problems = reachable.problems()
    for problem in problems.values():
        sys.stderr.write(problem + "\n")
    if "DATABASE_URL" in problems and command not in ENDURING:
        sys.exit(1)


if __name__ == "__main__":
    main()
