"""The options of listeners, which ``fuseboard sidecar`` and ``fuseboard envoy-config`` both have."""

import argparse
from collections.abc import Sequence
from typing import Any

from fuseboard.errors import Misconfigured

#: The value of an option for no such thing.
OFF = "off"
#: The beginning of an address that is the path of a unix socket.
UNIX = "unix:"


def add_files(group: Any, *files: tuple[str, str]) -> None:
    """Add options that name a file. ``files`` has the option and its help."""
    for option, about in files:
        group.add_argument(option, metavar="FILE", help=about)


def tls_values(given: argparse.Namespace, listener: str, options: Sequence[str]) -> tuple[Any, ...] | None:
    """The values of all ``options`` of TLS, or ``None`` if none is given.

    Raises ``Misconfigured`` if one of them is missing, or the option ``listener``.
    """
    values = tuple(_value(given, option) for option in options)
    if not any(values):
        return None
    if not all(values) or _value(given, listener) is None:
        *first, last = (listener, *options)
        raise Misconfigured(f"TLS needs {', '.join(first)} and {last}")
    return values


def _value(given: argparse.Namespace, option: str) -> Any:
    return getattr(given, option.removeprefix("--").replace("-", "_"))
