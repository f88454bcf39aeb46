"""The command ``fuseboard sidecar``."""

import argparse
import logging
import os
from importlib.util import find_spec
from typing import Any

from fuseboard.errors import Misconfigured
from fuseboard.settings import AgentSettings

_ABOUT = """Answer the questions of an application in any language, over HTTP on loopback.

The agent reads the variables FUSEBOARD_*, as in a pod in Python. FUSEBOARD_SIDECAR_TOKEN_FILE names the
file of the token that the application sends. docs/sidecar.md describes the requests.
"""


def add_to(commands: Any) -> None:
    sidecar = commands.add_parser(
        "sidecar",
        help="answer an application in any language, over HTTP on loopback",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sidecar.add_argument(
        "--listen",
        default="127.0.0.1:7480",
        metavar="HOST:PORT",
        help="an address of loopback (default: %(default)s)",
    )
    sidecar.add_argument(
        "--no-token",
        action="store_true",
        help="ask for no token: every process of the pod can ask and report",
    )


def run(given: argparse.Namespace) -> int:
    """0 after SIGTERM. Raises ``Misconfigured``."""
    if find_spec("httptools") is None:
        raise Misconfigured("the sidecar needs httptools: pip install 'fuseboard[sidecar]'")
    # Here, so that the other commands need no httptools.
    from fuseboard.sidecar import app
    from fuseboard.sidecar.access import loopback_of, token_of

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    host, port = loopback_of(given.listen)
    token = None if given.no_token else token_of(os.environ)
    app.run(AgentSettings.from_env(), app.Options(host=host, port=port, token=token))
    return 0
