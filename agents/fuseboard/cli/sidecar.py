"""The command ``fuseboard sidecar``."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fuseboard.cli.listener_options import OFF, UNIX, add_files, tls_values
from fuseboard.contract.words import is_slug
from fuseboard.errors import Misconfigured
from fuseboard.settings import MAX_SUBJECTS, PREFIX, AgentSettings

if TYPE_CHECKING:
    from fuseboard.envoy.certificates import MutualTls
    from fuseboard.envoy.grpc_server import GrpcListener
    from fuseboard.sidecar.app import Options
    from fuseboard.sidecar.peers import Place

_ABOUT = """Answer the questions of an application in any language, over HTTP on loopback.

The agent reads the variables FUSEBOARD_*, as in a pod in Python. FUSEBOARD_SIDECAR_TOKEN_FILE names the
file of the token that the application sends. docs/sidecar.md describes the requests.
"""

#: The default of ``--most-subjects`` beside one application, which has less memory than a service.
_BESIDE_AN_APP = 2_000
_BOUND_VARIABLE = f"{PREFIX}MOST_SUBJECTS"

_MAX_WORKERS = 64
_TLS = ("--tls-cert", "--tls-key", "--client-ca", "--client-san")


def add_to(commands: Any) -> None:
    sidecar = commands.add_parser(
        "sidecar",
        help="answer an application in any language, over HTTP on loopback",
        usage="%(prog)s [OPTION ...]",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_application(sidecar.add_argument_group("for the application"))
    _add_envoy(sidecar.add_argument_group("for Envoy"))
    _add_grpc(sidecar.add_argument_group("for Envoy, with --envoy-grpc"))
    _add_process(sidecar.add_argument_group("the process"))


def _add_application(group: Any) -> None:
    group.add_argument(
        "--listen",
        default="127.0.0.1:7480",
        metavar="HOST:PORT",
        help="an address of loopback, or 'off' (default: %(default)s)",
    )
    group.add_argument(
        "--no-token",
        action="store_true",
        help="ask for no token: every process of the pod can ask and report",
    )
    group.add_argument("--unix", metavar="PATH", help="also listen on a unix socket of mode 0660")
    group.add_argument(
        "--uid",
        type=int,
        action="append",
        default=[],
        help="a user that may use --unix and --envoy-unix; may be repeated (default: their modes decide)",
    )
    group.add_argument(
        "--tenants",
        action="append",
        default=[],
        metavar="PATTERN",
        help="the tenants that the application may use, like 'acme' or 'eu-*', where * is any text; may be "
        "repeated (default: all)",
    )


def _add_envoy(group: Any) -> None:
    group.add_argument(
        "--envoy-unix",
        metavar="PATH",
        help="also answer Envoy's rate limit filters, bridged to HTTP/1.1, on a unix socket of mode 0660",
    )
    group.add_argument(
        "--envoy-grpc",
        metavar=f"HOST:PORT|{UNIX}PATH",
        help="also answer Envoy's rate limit filters over gRPC; another address than one of loopback needs "
        "certificates, or --i-have-a-network-policy",
    )


def _add_grpc(group: Any) -> None:
    add_files(
        group,
        ("--tls-cert", "the certificate of the sidecar"),
        ("--tls-key", "the key of this certificate"),
        ("--client-ca", "the authority that signed the certificates of Envoys"),
    )
    group.add_argument(
        "--client-san",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a DNS name or URI that the certificate of an Envoy has, where * is any text; may be repeated",
    )
    group.add_argument(
        "--i-have-a-network-policy",
        action="store_true",
        help="take gRPC from every address without certificates: each process that reaches the address can "
        "spend every limit",
    )
    group.add_argument(
        "--connection-age-s",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="end a connection after this time: Envoy finds new replicas (default: %(default)g)",
    )


def _add_process(group: Any) -> None:
    group.add_argument(
        "--probes",
        default="0.0.0.0:7481",
        metavar="HOST:PORT",
        help="where /healthz, /readyz and /metrics are, or 'off' (default: %(default)s)",
    )
    group.add_argument(
        "--shared",
        action="store_true",
        help="serve all pods of a node: without bulkheads, local rates and shedding, which protect one pod",
    )
    group.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="serve with N processes, each a separate agent; needs --shared, or --envoy-unix alone "
        "(default: %(default)s)",
    )
    # The process of --workers passes it to each of its workers.
    group.add_argument("--worker", help=argparse.SUPPRESS)
    group.add_argument(
        "--drain-s",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="at SIGTERM, decide on until the application has left, at most this long (default: %(default)g)",
    )
    group.add_argument(
        "--most-subjects",
        metavar="N",
        help="the most tenants, addresses and keys whose rules are kept prepared, from 100 "
        f"(default: FUSEBOARD_MOST_SUBJECTS, or else {_BESIDE_AN_APP}, and with --shared {MAX_SUBJECTS})",
    )


def run(given: argparse.Namespace, arguments: Sequence[str]) -> int:
    """0 after SIGTERM. ``arguments`` are those of this process. Raises ``Misconfigured``."""
    _check_libraries(given)
    # Here, so that the other commands need no httptools.
    from fuseboard.sidecar import app, supervisor
    from fuseboard.sidecar.peers import Place

    place = None if given.worker is None else msgspec.json.decode(given.worker, type=Place)
    of_worker = "" if place is None else f" worker {place.number}"
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s %(levelname)s{of_worker} %(name)s %(message)s"
    )
    options, settings = _options(given, place), _settings(given)
    if place is not None:
        app.run(_of_worker(settings, place), options)
    elif given.workers > 1:
        supervisor.run(settings, options, [sys.executable, "-m", "fuseboard", *arguments], given.workers)
    else:
        app.run(settings, options)
    return 0


def _check_libraries(given: argparse.Namespace) -> None:
    if find_spec("httptools") is None:
        raise Misconfigured("the sidecar needs httptools: pip install 'fuseboard[sidecar]'")
    if _answers_envoy(given) and not (find_spec("google") and find_spec("google.protobuf")):
        raise Misconfigured("answering Envoy needs protobuf: pip install 'fuseboard[envoy]'")
    if given.envoy_grpc is not None and find_spec("grpc") is None:
        raise Misconfigured("--envoy-grpc needs grpcio: pip install 'fuseboard[envoy]'")


def _answers_envoy(given: argparse.Namespace) -> bool:
    return given.envoy_unix is not None or given.envoy_grpc is not None


def _options(given: argparse.Namespace, place: "Place | None") -> "Options":
    """Raises ``Misconfigured`` for options that are wrong or contradict each other."""
    from fuseboard.sidecar.access import TenantNames, address_of, loopback_of, token_of
    from fuseboard.sidecar.app import Options

    listen = None if given.listen == OFF else loopback_of(given.listen)
    if listen is None and given.unix is None and not _answers_envoy(given):
        raise Misconfigured("--listen off needs --unix, --envoy-unix or --envoy-grpc")
    _check_unix_sockets(given)
    _check_workers(given)
    if not 0 <= given.drain_s <= 600:
        raise Misconfigured("--drain-s must be 0 to 600 seconds")
    return Options(
        listen=listen,
        token=None if given.no_token or listen is None else token_of(os.environ),
        unix=given.unix,
        envoy_unix=given.envoy_unix,
        envoy_grpc=_grpc(given),
        uids=frozenset(given.uid),
        tenants=TenantNames(given.tenants) if given.tenants else None,
        probes=None if given.probes == OFF else address_of("--probes", given.probes),
        drain_s=given.drain_s,
        place=place,
    )


def _check_unix_sockets(given: argparse.Namespace) -> None:
    from fuseboard.serving.sockets import KNOWS_PEERS

    sockets = [path for path in (given.unix, given.envoy_unix) if path is not None]
    if given.envoy_grpc is not None and given.envoy_grpc.startswith(UNIX):
        sockets.append(given.envoy_grpc.removeprefix(UNIX))
    if len(set(sockets)) < len(sockets):
        raise Misconfigured("--unix, --envoy-unix and --envoy-grpc need a socket each")
    if given.uid and ((given.unix is None and given.envoy_unix is None) or not KNOWS_PEERS):
        raise Misconfigured("--uid needs --unix or --envoy-unix, and Linux")


def _check_workers(given: argparse.Namespace) -> None:
    if given.shared and given.unix is None:
        raise Misconfigured("--shared needs --unix: loopback is that of one pod, and a node has many")
    if not 1 <= given.workers <= _MAX_WORKERS:
        raise Misconfigured(f"--workers must be 1 to {_MAX_WORKERS}")
    if given.workers == 1:
        return
    only_envoy = given.envoy_unix is not None and given.listen == OFF and given.unix is None
    if not (given.shared or only_envoy):
        raise Misconfigured(
            "--workers needs --shared, or --envoy-unix with --listen off and without --unix: what protects "
            "one pod would count in each worker alone"
        )
    if given.envoy_grpc is not None:
        raise Misconfigured("--envoy-grpc is served by one process: use --envoy-unix with --workers")


def _settings(given: argparse.Namespace) -> AgentSettings:
    """The settings of the agent. Raises ``Misconfigured``."""
    usual = MAX_SUBJECTS if given.shared else _BESIDE_AN_APP
    most = given.most_subjects or os.environ.get(_BOUND_VARIABLE) or str(usual)
    settings = AgentSettings.from_env({**os.environ, _BOUND_VARIABLE: most})
    if given.workers > 1 and not is_slug(f"{settings.server}-{given.workers}"):
        raise Misconfigured(
            f"FUSEBOARD_SERVER has {len(settings.server)} characters, and --workers adds a number: names "
            "have at most 64"
        )
    return replace(settings, serves_node=given.shared)


def _of_worker(settings: AgentSettings, place: "Place") -> AgentSettings:
    """Each worker is an agent with its own name and its own files."""
    folder = None if settings.state_dir is None else settings.state_dir / f"worker-{place.number}"
    return replace(settings, server=place.server, state_dir=folder)


def _grpc(given: argparse.Namespace) -> "GrpcListener | None":
    """Raises ``Misconfigured``: every process that reaches the listener can spend every limit."""
    tls = _mutual_tls(given)
    if given.envoy_grpc is None:
        if given.i_have_a_network_policy:
            raise Misconfigured("--i-have-a-network-policy needs --envoy-grpc")
        return None
    # Here, so that a sidecar behind a bridge needs no gRPC.
    from fuseboard.envoy.grpc_server import GrpcListener
    from fuseboard.sidecar.access import address_of

    if not 1 <= given.connection_age_s <= 86_400:
        raise Misconfigured("--connection-age-s must be 1 to 86,400 seconds")
    if given.envoy_grpc.startswith(UNIX):
        if tls is not None:
            raise Misconfigured("the unix socket of --envoy-grpc has no certificates: its mode decides")
        if given.uid:
            raise Misconfigured("gRPC does not know the user of its peer: use --uid with --envoy-unix")
        path = given.envoy_grpc.removeprefix(UNIX)
        return GrpcListener(address=path, connection_age_s=given.connection_age_s)
    host, port = address_of("--envoy-grpc", given.envoy_grpc)
    if not (ip_address(host).is_loopback or tls is not None or given.i_have_a_network_policy):
        raise Misconfigured(
            f"others can reach {given.envoy_grpc}, and could spend every limit: pass --tls-cert, --tls-key, "
            "--client-ca and --client-san, or --i-have-a-network-policy if one admits Envoys alone"
        )
    return GrpcListener(address=(host, port), tls=tls, connection_age_s=given.connection_age_s)


def _mutual_tls(given: argparse.Namespace) -> "MutualTls | None":
    if (values := tls_values(given, "--envoy-grpc", _TLS)) is None:
        return None
    from fuseboard.envoy.certificates import MutualTls

    cert, key, client_ca, names = values
    return MutualTls(cert=Path(cert), key=Path(key), client_ca=Path(client_ca), client_sans=tuple(names))
