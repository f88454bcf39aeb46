"""The certificates of the listener over gRPC: files, which may be replaced while it runs."""

import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec import Struct

from fuseboard.errors import Misconfigured

logger = logging.getLogger("fuseboard.envoy")

#: A certificate that ends within this time is logged. Its renewal is due earlier, often when a third of its
#: life is left. The share keeps a certificate of one day from being near its end all the time.
WARN_S = 21 * 86_400.0
WARN_SHARE = 0.25

_CERT, _CLIENT_CA = "--tls-cert", "--client-ca"
#: The fields of a certificate, in the form that ``ssl`` returns.
_Certificate = Mapping[str, Any]


class MutualTls(Struct, frozen=True, kw_only=True):
    """Files, which may be replaced while the service runs."""

    cert: Path
    key: Path
    client_ca: Path
    #: The DNS names and URIs that a client's certificate may have, in which ``*`` is any text.
    client_sans: tuple[str, ...]


class Pem(Struct, frozen=True, kw_only=True):
    """The content of the files at one moment."""

    key: bytes
    cert: bytes
    client_ca: bytes


class Validity(Struct, frozen=True):
    """When the certificate of an option begins and ends, in Unix time."""

    option: str
    path: Path
    begins: float
    ends: float


class Certificates:
    """The newest files that are whole, fit together and are valid.

    Raises ``Misconfigured`` if the files of the start are not.
    """

    def __init__(self, tls: MutualTls, *, now: Callable[[], float] = time.time) -> None:
        self._tls, self._now = tls, now
        self.pem = _read(tls)
        self.validity = _checked(tls, now())
        #: Replaced files that were wrong. A problem counts once, however many handshakes find it.
        self.refused = 0
        self._problem = ""
        self._lock = Lock()
        self._warned: set[tuple[Validity, bool]] = set()
        self._warn()

    def renew(self) -> None:
        """Read the files again. Wrong files leave ``pem`` as it is. From any thread."""
        with self._lock:
            problem = self._look()
            # Anyone can begin a handshake, so a problem is logged once.
            if problem and problem != self._problem:
                self.refused += 1
                logger.warning("envoy.certificates: the earlier ones are used: %s", problem)
            self._problem = problem
            self._warn()

    def _look(self) -> str:
        """Use the files of this moment, or return what is wrong with them."""
        try:
            found = _read(self._tls)
            if found == self.pem:
                return ""
            try:
                validity, problem = _checked(self._tls, self._now()), ""
            except Misconfigured as error:
                validity, problem = (), str(error)
            if _read(self._tls) != found:
                # Files that are being replaced do not belong together. The next look reads all of them.
                return self._problem
        except Misconfigured as error:
            return str(error)
        if not problem:
            self.pem, self.validity = found, validity
        return problem

    def _warn(self) -> None:
        """Log each certificate near its end once, and once more when it has ended."""
        now = self._now()
        for one in self.validity:
            ended = one.ends < now
            near = one.ends - now < min(WARN_S, WARN_SHARE * (one.ends - one.begins))
            if near and (one, ended) not in self._warned:
                self._warned.add((one, ended))
                verb = "expired" if ended else "expires"
                when = _written(one.ends)
                logger.warning(
                    "envoy.certificate: %s %s %s at %s: renew it", one.option, one.path, verb, when
                )


def _read(tls: MutualTls) -> Pem:
    try:
        return Pem(key=tls.key.read_bytes(), cert=tls.cert.read_bytes(), client_ca=tls.client_ca.read_bytes())
    except OSError as error:
        raise Misconfigured(
            f"cannot read {error.filename} ({error.strerror}): pass a file that this process can read"
        ) from None


def _checked(tls: MutualTls, now: float) -> tuple[Validity, ...]:
    """Raises ``Misconfigured`` for files that no client can use: gRPC only reports that it cannot bind."""
    own, authorities = _trusting(_CERT, tls.cert), _trusting(_CLIENT_CA, tls.client_ca).get_ca_certs()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, OpenSSL would ask the terminal for that of an encrypted key.
        server.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        raise Misconfigured(
            f"--tls-key {tls.key} does not fit --tls-cert {tls.cert} ({error}): pass the private key of this "
            "certificate in PEM, without a passphrase"
        ) from None
    try:
        shown = _peer_certificate(own, server)
    except ssl.SSLError as error:
        # A key of a rare kind, such as one of P-224, is no error of the verification.
        problem = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error
        raise Misconfigured(
            f"{_CERT} {tls.cert} cannot be used: {problem}: pass one that clients take now"
        ) from None
    validity = [_validity(_CERT, tls.cert, [shown])]
    # A client may have signed its own certificate, which then is no authority.
    if authorities:
        validity.append(_validity(_CLIENT_CA, tls.client_ca, authorities))
    for one in validity:
        if now > one.ends:
            raise Misconfigured(f"{one.option} {one.path} expired at {_written(one.ends)}: renew it")
        if now < one.begins:
            when = _written(one.begins)
            raise Misconfigured(f"{one.option} {one.path} is not valid before {when}: wait, or set the clock")
    return tuple(validity)


def _trusting(option: str, path: Path) -> ssl.SSLContext:
    """The context of a client that trusts each certificate of the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(path)
    except OSError:
        raise Misconfigured(f"{option} {path} has no certificate: pass a file in PEM") from None
    return context


def _peer_certificate(trusting: ssl.SSLContext, showing: ssl.SSLContext) -> _Certificate:
    """Raises ``ssl.SSLError``.

    ``ssl`` gives the dates of a certificate to its peer only, so a client and a server shake hands in memory.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server)
    server = showing.wrap_bio(to_server, to_client, server_side=True)
    # TLS 1.3 needs each side once, and TLS 1.2 twice: some systems allow no more than that.
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
    client.do_handshake()
    return client.getpeercert() or {}


def _validity(option: str, path: Path, certificates: Sequence[_Certificate]) -> Validity:
    """From the first to the last time of all: an authority may stay in a file with its successor."""
    try:
        begins, ends = (
            [ssl.cert_time_to_seconds(one[name]) for one in certificates]
            for name in ("notBefore", "notAfter")
        )
        return Validity(option, path, min(begins), max(ends))
    except ValueError:
        raise Misconfigured(f"{option} {path} has no dates that can be read: pass a file in PEM") from None


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
