"""The command ``fuseboard``: for people on the host of a pod, with the environment of the pod.

::

    fuseboard doctor                                     can this pod decide?
    fuseboard doctor --checklist                         is the configuration ready for a deployment?
    fuseboard explain --tenant acme --endpoint "POST /v1/orders"
    fuseboard explain --dependency payments-api          what is the next decision, and why?
    fuseboard ctl ...                                    edit and watch through the REST API, from anywhere
    fuseboard sidecar                                    decide for an application in any language
    fuseboard envoy check limits.yaml                    what does a file of envoyproxy/ratelimit mean here?
    fuseboard envoy-config                               how does Envoy ask a sidecar?
"""

import argparse
import logging
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fuseboard.errors import Misconfigured

#: The module of each command. It has ``add_to`` for its options, and ``run``. Only that of the given command
#: is imported: a sidecar runs in every pod, and would keep all of them in memory.
_MODULES = {
    "doctor": "fuseboard.cli.doctor",
    "explain": "fuseboard.cli.explain",
    "ctl": "fuseboard.cli.ctl",
    "sidecar": "fuseboard.cli.sidecar",
    "envoy": "fuseboard.cli.envoy",
    "envoy-config": "fuseboard.cli.envoy_config",
}


class _Version(argparse.Action):
    """Only who asks pays for it: in a checkout, git is asked for the commit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fuseboard.contract.build import commit_of
        from fuseboard.reporting.heartbeat import agent_version

        package = Path(__file__).resolve().parents[1]
        commit = commit_of(package, checkout=package.parents[1])
        sys.stdout.write(f"fuseboard {agent_version()}{f' (commit {commit})' if commit else ''}\n")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when all is well, 1 when ``doctor`` or ``envoy`` found a problem, 2 when the command cannot answer.

    ``ctl`` has more codes: ``fuseboard.cli.ctl.exit_codes.Exit``.
    """
    words = sys.argv[1:] if arguments is None else arguments
    first = words[0] if words else ""
    given = _parser([first] if first in _MODULES else _MODULES).parse_args(words)
    command = import_module(_MODULES[given.command])
    if given.command == "ctl":
        return int(command.run(given, _parser))
    try:
        if given.command == "sidecar":
            return int(command.run(given, words))
        # A log line of the agent on stderr would look like a finding.
        logging.getLogger("fuseboard").addHandler(logging.NullHandler())
        return int(command.run(given))
    except Misconfigured as error:
        sys.stderr.write(f"fuseboard: {error}\n")
        return 2


def _parser(commands: Iterable[str] = _MODULES) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fuseboard", description="Limits and breakers, as a pod sees them.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the release and its commit")
    added = parser.add_subparsers(dest="command", required=True)
    for name in commands:
        import_module(_MODULES[name]).add_to(added)
    return parser
