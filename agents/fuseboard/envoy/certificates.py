"""The certificates of the listener over gRPC: files, which may be replaced while it runs."""

import base64
import logging
import re
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from fuseboard.errors import Misconfigured

logger = logging.getLogger("fuseboard.envoy")

#: A certificate that ends within this time is logged. Its renewal is due earlier, often when a third of its
#: life is left. The share keeps a certificate of one day from being near its end all the time.
WARN_S = 21 * 86_400.0
WARN_SHARE = 0.25

_CERT, _CLIENT_CA = "--tls-cert", "--client-ca"
_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]+)-----END")
#: Tags of X.509.
_VERSION, _UTC_TIME = 0xA0, 0x17


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
        self.validity = _checked(tls, self.pem, now())
        #: Replaced files that were wrong. A problem counts once, however many handshakes find it.
        self.refused = 0
        self._problem = ""
        self._warned: set[tuple[Validity, bool]] = set()
        self._warn()

    def renew(self) -> bool:
        """Read the files again, and return whether ``pem`` is new. Wrong files leave it as it is."""
        renewed = False
        try:
            found = _read(self._tls)
            if found != self.pem:
                validity = _checked(self._tls, found, self._now())
                # Files that were replaced between two reads do not belong together.
                renewed = _read(self._tls) == found
                if renewed:
                    self.pem, self.validity = found, validity
            self._problem = ""
        except Misconfigured as error:
            # Anyone can begin a handshake, so a problem is logged once.
            if self._problem != (problem := str(error)):
                self._problem = problem
                self.refused += 1
                logger.warning("envoy.certificates: the earlier ones are used: %s", problem)
        self._warn()
        return renewed

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


def _checked(tls: MutualTls, pem: Pem, now: float) -> tuple[Validity, ...]:
    """Raises ``Misconfigured`` for files that no client can use: gRPC only reports that it cannot bind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for option, path in ((_CERT, tls.cert), (_CLIENT_CA, tls.client_ca)):
        try:
            context.load_verify_locations(path)
        except OSError:
            raise Misconfigured(f"{option} {path} has no certificate: pass a file in PEM") from None
    try:
        # Without a password, OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(tls.cert, tls.key, password="")
    except OSError as error:
        raise Misconfigured(
            f"--tls-key {tls.key} does not fit --tls-cert {tls.cert} ({error}): pass the private key of this "
            "certificate in PEM, without a passphrase"
        ) from None
    validity = (
        # The others are those of its authorities.
        _validity(_CERT, tls.cert, _PEM.findall(pem.cert)[:1]),
        _validity(_CLIENT_CA, tls.client_ca, _PEM.findall(pem.client_ca)),
    )
    for one in validity:
        if now > one.ends:
            raise Misconfigured(f"{one.option} {one.path} expired at {_written(one.ends)}: renew it")
        if now < one.begins:
            when = _written(one.begins)
            raise Misconfigured(f"{one.option} {one.path} is not valid before {when}: wait, or set the clock")
    return validity


def _validity(option: str, path: Path, certificates: list[bytes]) -> Validity:
    """From the first to the last time of all: an authority may stay in a file with its successor."""
    try:
        times = [_times(base64.b64decode(body)) for body in certificates]
        return Validity(option, path, min(one[0] for one in times), max(one[1] for one in times))
    except (ValueError, IndexError):
        raise Misconfigured(f"{option} {path} has no dates that can be read: pass a file in PEM") from None


def _times(der: bytes) -> tuple[float, float]:
    """The Unix times of a certificate (RFC 5280, 4.1), which OpenSSL has read before.

    ``ssl`` gives them only for authorities, and for the peer of a connection.
    """
    at, _ = _content(der, 0)
    at, _ = _content(der, at)
    # The serial number, the algorithm and the issuer are before the dates.
    for _ in range(4 if der[at] == _VERSION else 3):
        _, at = _content(der, at)
    at, _ = _content(der, at)
    _, second = _content(der, at)
    return _time(der, at), _time(der, second)


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at ``at`` begins and ends."""
    begins, length = at + 2, der[at + 1]
    if length > 0x7F:
        begins += length - 0x80
        length = int.from_bytes(der[at + 2 : begins])
    return begins, begins + length


def _time(der: bytes, at: int) -> float:
    begins, ends = _content(der, at)
    text = der[begins:ends].decode("ascii")
    if der[at] == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
