"""The services for Envoy over gRPC, for an Envoy that does not bridge it to HTTP/1.1.

Each path has a function over bytes, the same as behind the bridge.
"""

import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import grpc
from msgspec import Struct

from fuseboard.contract.endpoints import starred
from fuseboard.envoy.asks import InvalidMessage
from fuseboard.envoy.bridge import Export
from fuseboard.envoy.certificates import Certificates, MutualTls, Pem
from fuseboard.serving.sockets import MODE, remove_unused

logger = logging.getLogger("fuseboard.envoy")

#: Requests that are worked on at once. More get RESOURCE_EXHAUSTED: no decision.
MAX_REQUESTS = 1_000
MAX_CONNECTIONS = 1_024
#: Requests of one connection, which alone cannot hold all places. Envoy has one for each of its threads, and
#: sends many requests on a new one before it hears this bound: with 100, a burst of 200 got no decision.
#: Several connections can hold all places: only clients that may spend every limit reach the listener.
MAX_STREAMS = 500
#: A connection that gets old is closed when its requests have their answers, or after this time.
GRACE_S = 5.0
#: The handshakes of TLS and HTTP/2 must end within this time after the connection. A request may send no
#: message for as long as its connection lives.
HANDSHAKE_S = 5.0

_STRANGER = "no --client-san names the certificate"

Address = tuple[str, int]


class GrpcListener(Struct, frozen=True, kw_only=True):
    #: An address, or the path of a unix socket.
    address: Address | str
    tls: MutualTls | None = None
    #: Then a client connects again, and may find another replica. grpc varies it by 10 %.
    connection_age_s: float = 300.0


class GrpcServer:
    """A listener that runs."""

    def __init__(self, paths: Mapping[str, Export], tls: MutualTls | None) -> None:
        self._paths = paths
        self._names = None if tls is None else _matcher(tls.client_sans)
        self.certificates = None if tls is None else Certificates(tls)
        #: The port; 0 for a unix socket.
        self.port = 0
        self.most_connections = MAX_CONNECTIONS
        #: Requests that are worked on.
        self.active = 0
        #: The time of the last answer, on the monotonic clock.
        self.since = monotonic()
        #: Requests without a certificate that ``--client-san`` names.
        self.strangers = 0

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
        for path, serve in self._paths.items():
            service, method = path.strip("/").split("/")
            handler = grpc.unary_unary_rpc_method_handler(self._handler(serve))
            services.setdefault(service, {})[method] = handler
        return [grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()]

    def _handler(self, serve: Export) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def answer(body: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
            if self._names is not None and not any(map(self._names, _names_of(context))):
                self._note_stranger()
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, _STRANGER)
            self.active += 1
            try:
                answered = await serve(body)
            except InvalidMessage as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            finally:
                self.active -= 1
                self.since = monotonic()
            if answered.unsent is not None and context.cancelled():
                answered.unsent()
            return answered.body

        return answer

    def _note_stranger(self) -> None:
        if not self.strangers:
            logger.warning("envoy.stranger: %s; further ones are only counted", _STRANGER)
        self.strangers += 1


@asynccontextmanager
async def serving(
    paths: Mapping[str, Export], listener: GrpcListener, *, head_bytes: int, body_bytes: int
) -> AsyncIterator[GrpcServer]:
    """Serve requests of at most ``head_bytes`` and ``body_bytes`` until the block ends.

    Raises ``OSError`` if the address cannot be used, and ``Misconfigured`` for wrong files.
    """
    running = GrpcServer(paths, listener.tls)
    server = grpc.aio.server(
        handlers=running.handlers(),
        options=_options(listener, head_bytes, body_bytes),
        maximum_concurrent_rpcs=MAX_REQUESTS,
    )
    try:
        if isinstance(listener.address, str):
            _bind_unix(server, listener.address)
        else:
            running.port = _bind_tcp(server, listener.address, running.certificates)
        await server.start()
        yield running
    finally:
        await server.stop(GRACE_S)
        if isinstance(listener.address, str):
            remove_unused(listener.address)


def _options(listener: GrpcListener, head_bytes: int, body_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", body_bytes),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.max_metadata_size", head_bytes),
        ("grpc.absolute_max_metadata_size", head_bytes),
        ("grpc.max_connection_age_ms", round(listener.connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", round(GRACE_S * 1000)),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_S * 1000)),
        # A second process on the same port would take a part of the requests, and nothing would show it.
        ("grpc.so_reuseport", 0),
    ]


def _bind_tcp(server: grpc.aio.Server, address: Address, certificates: Certificates | None) -> int:
    host, port = address
    named = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if certificates is None:
            return int(server.add_insecure_port(named))
        return int(server.add_secure_port(named, _credentials(certificates)))
    except RuntimeError as error:
        raise OSError(str(error)) from None


def _bind_unix(server: grpc.aio.Server, path: str) -> None:
    remove_unused(path)
    if os.path.lexists(path):
        # grpc would remove the file of another process.
        raise FileExistsError(f"{path} is in use")
    # Between the bind and the mode, only owner and group may connect.
    before = os.umask(0o007)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(str(error)) from None
    finally:
        os.umask(before)
    os.chmod(path, MODE)


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Each handshake reads the files again: they are small, and need no watcher."""
    used = certificates.pem

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        certificates.renew()
        # A scrape of the figures may have found the new files before.
        if certificates.pem is used:
            return None
        used = certificates.pem
        return _configuration(used)

    return grpc.dynamic_ssl_server_credentials(_configuration(used), renewed, True)


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    pairs = [(pem.key, pem.cert)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=pem.client_ca)


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    match = re.compile("|".join(map(starred, patterns))).match
    return lambda name: match(name) is not None


def _names_of(context: Any) -> list[str]:
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in names]
