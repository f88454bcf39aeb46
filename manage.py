#!/usr/bin/env python
"""Runs the control plane's commands in a checkout. Installed, they are those of ``fuseboard-server``."""

import sys

# For users of an older Python: nothing here that Python 3.5 cannot parse.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("Fuseboard needs Python 3.11 or newer; this is {}.{}.".format(*sys.version_info[:2]))


def main():  # type: () -> None
    from controlplane.command_line import main as run

    # The demo is a tool, and no part of what is installed.
    if sys.argv[1:2] == ["demo"] and not {"-h", "--help"} & set(sys.argv):
        from tools.demo.data_dir import run_embedded_servers

        run(lambda: run_embedded_servers(check=bool({"--check", "--check-all"} & set(sys.argv))))
    else:
        run()


if __name__ == "__main__":
    main()
