"""The command ``fuseboard envoy-config``."""

import argparse
import os
import re
import sys
from ipaddress import ip_address
from typing import Any

from fuseboard.cli.listener_options import OFF, UNIX, add_files, tls_values
from fuseboard.contract.descriptors import DOMAIN_RULE, is_domain
from fuseboard.envoy.filters import Address, Addresses, Filters, Tls, bootstrap, snippets
from fuseboard.errors import Misconfigured

_ABOUT = """Print the configuration with which Envoy asks `fuseboard sidecar`.

Paste each part where its comment says. With --full, it is a whole configuration: envoy -c FILE runs it in
front of one application. docs/envoy.md describes the parts.
"""

_DEFAULT = Filters()
_ADDRESSES = Addresses()
#: The bridge in Envoy stops waiting after 1 s.
_MAX_TIMEOUT_MS = 1_000
#: Bytes of the path of a unix socket, and of a name of TLS: Envoy takes no more.
_MAX_PATH, _MAX_NAME = 107, 255
_TLS = ("--tls-cert", "--tls-key", "--server-ca", "--server-name")

_header = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_host = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+", re.ASCII)


def add_to(commands: Any) -> None:
    config = commands.add_parser(
        "envoy-config",
        help="print the configuration with which Envoy asks a sidecar",
        usage="%(prog)s [OPTION ...]",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_service(config.add_argument_group("the sidecar"))
    _add_questions(config.add_argument_group("what Envoy asks"))
    _add_whole(config.add_argument_group("a whole configuration"))


def _add_service(group: Any) -> None:
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--unix",
        default=_DEFAULT.unix,
        metavar="PATH",
        help="the socket of --envoy-unix, as Envoy finds it (default: %(default)s)",
    )
    where.add_argument(
        "--grpc", metavar=f"HOST:PORT|{UNIX}PATH", help="the address of --envoy-grpc; a name is looked up"
    )
    add_files(
        group,
        ("--tls-cert", "with --grpc, the certificate of Envoy"),
        ("--tls-key", "the key of this certificate"),
        ("--server-ca", "the authority that signed the certificate of the service"),
    )
    group.add_argument("--server-name", metavar="NAME", help="the DNS name in the certificate of the service")
    group.add_argument(
        "--timeout-ms",
        type=int,
        default=_DEFAULT.timeout_ms,
        metavar="N",
        help="how long Envoy waits for a decision (default: %(default)s)",
    )
    group.add_argument(
        "--failure-mode-deny",
        action="store_true",
        help="refuse a request about which there is no decision (default: allow it)",
    )


def _add_questions(group: Any) -> None:
    group.add_argument(
        "--domain", default=_DEFAULT.domain, help="the domain of the limits (default: %(default)s)"
    )
    group.add_argument(
        "--breaker-domain",
        default=_DEFAULT.breaker_domain,
        metavar="DOMAIN",
        help="the domain of the dependencies, or 'off' for limits only (default: %(default)s)",
    )
    group.add_argument(
        "--tenant-header",
        default=_DEFAULT.tenant_header,
        metavar="HEADER",
        help="the header of requests that names the tenant (default: %(default)s)",
    )
    group.add_argument(
        "--tokens-header",
        metavar="HEADER",
        help="limit tokens, too: the header of responses with the number that was used",
    )


def _add_whole(group: Any) -> None:
    group.add_argument("--full", action="store_true", help="print a whole configuration, for one application")
    for option, address, about in (
        ("--listen", _ADDRESSES.listen, "where Envoy takes requests"),
        ("--upstream", _ADDRESSES.upstream, "the application"),
        ("--admin", _ADDRESSES.admin, "the admin interface of Envoy"),
    ):
        text = "{}:{}".format(*address)
        group.add_argument(option, default=text, metavar="HOST:PORT", help=f"{about} (default: {text})")


def run(given: argparse.Namespace) -> int:
    """0. Raises ``Misconfigured``."""
    if not 1 <= given.timeout_ms <= _MAX_TIMEOUT_MS:
        raise Misconfigured(f"--timeout-ms must be 1 to {_MAX_TIMEOUT_MS:,}")
    for option in ("domain", "breaker_domain"):
        if not is_domain(getattr(given, option)):
            raise Misconfigured(f"--{option.replace('_', '-')} is not the name of a domain. {DOMAIN_RULE}")
    for option in ("tls_cert", "tls_key", "server_ca"):
        _check_text(f"--{option.replace('_', '-')}", getattr(given, option))
    _check_text("--unix", given.unix, _MAX_PATH)
    _check_text("--server-name", given.server_name, _MAX_NAME)
    for option in ("tenant_header", "tokens_header"):
        header = getattr(given, option)
        if header is not None and not _header.fullmatch(header):
            raise Misconfigured(f"--{option.replace('_', '-')} must be the name of a header, like x-tenant")
    filters = Filters(
        unix=given.unix,
        grpc=None if given.grpc is None else _grpc(given.grpc),
        tls=_tls(given),
        domain=given.domain,
        breaker_domain=None if given.breaker_domain == OFF else given.breaker_domain,
        timeout_ms=given.timeout_ms,
        deny=given.failure_mode_deny,
        tenant_header=given.tenant_header,
        tokens_header=given.tokens_header,
    )
    if filters.domain == filters.breaker_domain:
        raise Misconfigured("--domain and --breaker-domain must differ: each filter asks one of them")
    if given.full:
        addresses = Addresses(
            listen=_own_address("--listen", given.listen),
            upstream=_address("--upstream", given.upstream),
            admin=_own_address("--admin", given.admin),
        )
        sys.stdout.write(bootstrap(filters, addresses))
    else:
        sys.stdout.write(snippets(filters))
    return 0


def _tls(given: argparse.Namespace) -> Tls | None:
    if (values := tls_values(given, "--grpc", _TLS)) is None:
        return None
    cert, key, server_ca, server_name = values
    return Tls(cert=cert, key=key, server_ca=server_ca, server_name=server_name)


def _grpc(text: str) -> Address | str:
    if not text.startswith(UNIX):
        return _address("--grpc", text)
    _check_text("--grpc", path := text.removeprefix(UNIX), _MAX_PATH)
    return path


def _own_address(option: str, text: str) -> Address:
    """An address where Envoy listens: it looks no names up there."""
    address = _address(option, text)
    try:
        ip_address(address[0])
    except ValueError:
        raise Misconfigured(f"{option} must have an IP address, not {address[0]!r:.80}") from None
    return address


def _address(option: str, text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not _host.fullmatch(host) or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise Misconfigured(f"{option} must be HOST:PORT, like 127.0.0.1:8000, not {text!r:.80}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _check_text(option: str, text: str | None, most: int = 500) -> None:
    if text is not None and not (0 < len(os.fsencode(text)) <= most and text.isprintable()):
        raise Misconfigured(f"{option} must have 1 to {most} bytes, of printable characters")
