"""The command ``fuseboard sidecar``."""

import argparse
import logging
import os
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from fuseboard.errors import Misconfigured
from fuseboard.settings import MAX_SUBJECTS, PREFIX, AgentSettings

_ABOUT = """Answer the questions of an application in any language, over HTTP on loopback.

The agent reads the variables FUSEBOARD_*, as in a pod in Python. FUSEBOARD_SIDECAR_TOKEN_FILE names the
file of the token that the application sends. docs/sidecar.md describes the requests.
"""

#: The default of ``--most-subjects`` beside one application, which has less memory than a service.
_BESIDE_AN_APP = 2_000
_BOUND_VARIABLE = f"{PREFIX}MOST_SUBJECTS"

#: The value of an option for no such listener.
_OFF = "off"


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
        help="an address of loopback, or 'off' (default: %(default)s)",
    )
    sidecar.add_argument("--unix", metavar="PATH", help="also listen on a unix socket of mode 0660")
    sidecar.add_argument(
        "--envoy-unix",
        metavar="PATH",
        help="also answer Envoy's rate limit filters, bridged to HTTP/1.1, on a unix socket of mode 0660",
    )
    sidecar.add_argument(
        "--uid",
        type=int,
        action="append",
        default=[],
        help="a user that may use the unix sockets; may be repeated (default: their modes decide)",
    )
    sidecar.add_argument(
        "--tenants",
        action="append",
        default=[],
        metavar="PATTERN",
        help="the tenants that the application may use, like 'acme' or 'eu-*', where * is any text; may be "
        "repeated (default: all)",
    )
    sidecar.add_argument(
        "--shared",
        action="store_true",
        help="serve all pods of a node: without bulkheads, local rates and shedding, which protect one pod",
    )
    sidecar.add_argument(
        "--probes",
        default="0.0.0.0:7481",
        metavar="HOST:PORT",
        help="where /healthz, /readyz and /metrics are, or 'off' (default: %(default)s)",
    )
    sidecar.add_argument(
        "--drain-s",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="at SIGTERM, decide on until the application has left, at most this long (default: %(default)s)",
    )
    sidecar.add_argument(
        "--most-subjects",
        metavar="N",
        help="the most tenants, addresses and keys whose rules are kept prepared, from 100 "
        f"(default: FUSEBOARD_MOST_SUBJECTS, or else {_BESIDE_AN_APP}, and with --shared {MAX_SUBJECTS})",
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
    from fuseboard.serving.sockets import KNOWS_PEERS
    from fuseboard.sidecar import app
    from fuseboard.sidecar.access import TenantNames, address_of, loopback_of, token_of

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    listen = None if given.listen == _OFF else loopback_of(given.listen)
    if listen is None and given.unix is None and given.envoy_unix is None:
        raise Misconfigured("--listen off needs --unix or --envoy-unix")
    if given.envoy_unix is not None and not (find_spec("google") and find_spec("google.protobuf")):
        raise Misconfigured("--envoy-unix needs protobuf: pip install 'fuseboard[envoy]'")
    if given.envoy_unix is not None and given.envoy_unix == given.unix:
        raise Misconfigured("--unix and --envoy-unix need a socket each")
    if given.shared and given.unix is None:
        raise Misconfigured("--shared needs --unix: loopback is that of one pod, and a node has many")
    if given.uid and ((given.unix is None and given.envoy_unix is None) or not KNOWS_PEERS):
        raise Misconfigured("--uid needs --unix or --envoy-unix, and Linux")
    if not 0 <= given.drain_s <= 600:
        raise Misconfigured("--drain-s must be 0 to 600 seconds")
    options = app.Options(
        listen=listen,
        token=None if given.no_token or listen is None else token_of(os.environ),
        unix=given.unix,
        envoy_unix=given.envoy_unix,
        uids=frozenset(given.uid),
        tenants=TenantNames(given.tenants) if given.tenants else None,
        probes=None if given.probes == _OFF else address_of("--probes", given.probes),
        drain_s=given.drain_s,
    )
    usual = MAX_SUBJECTS if given.shared else _BESIDE_AN_APP
    most = given.most_subjects or os.environ.get(_BOUND_VARIABLE) or str(usual)
    settings = AgentSettings.from_env({**os.environ, _BOUND_VARIABLE: most})
    app.run(replace(settings, serves_node=given.shared), options)
    return 0
