"""How the commands of ``fuseboard ctl`` are declared."""

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    wanted: Commands, name: str, does: object, says: str, *, reason: bool = False, use: str = ""
) -> argparse.ArgumentParser:
    """``use``: this name is deprecated, and this one replaces it."""
    says = f"deprecated: use {use}" if use else says
    parser = wanted.add_parser(name, help=says, description=says)
    parser.set_defaults(does=does, use=use)
    parser.add_argument("--json", action="store_true", help="print JSON")
    if reason:
        parser.add_argument("--reason", required=True, help="why; stored in the audit log")
    return parser


def group(wanted: Commands, name: str, says: str) -> Commands:
    """Commands with a common first word, such as ``tenant show`` and ``tenant list``."""
    parser = wanted.add_parser(name, help=says)
    return parser.add_subparsers(dest=f"{name}_command", required=True, metavar="COMMAND")
