"""Certificates of web and gateway, where they serve TLS themselves instead of a proxy in front.

A renewed certificate needs no restart: each handshake uses the newest pair of files that belong together.
Connections that are open keep theirs.
"""

import re
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from django.core.exceptions import ImproperlyConfigured

from controlplane import env

#: Files are looked at in handshakes, at most once in this time.
LOOK_S = 1.0

log = structlog.get_logger(__name__)


def uvicorn_options() -> dict[str, Any]:
    """The two files and what renews them, or nothing without TLS. Raises ``ImproperlyConfigured``."""
    certificate, key = env.text("FUSEBOARD_TLS_CERT_FILE"), env.text("FUSEBOARD_TLS_KEY_FILE")
    if not certificate and not key:
        return {}
    if not certificate or not key:
        raise ImproperlyConfigured("FUSEBOARD_TLS_CERT_FILE and FUSEBOARD_TLS_KEY_FILE must be set together.")
    for name, file in (("FUSEBOARD_TLS_CERT_FILE", certificate), ("FUSEBOARD_TLS_KEY_FILE", key)):
        try:
            with open(file, "rb"):
                pass
        except OSError as error:
            raise ImproperlyConfigured(f"{name} names a file that cannot be read.") from error
    try:
        _check_key(key)
    except OSError as error:
        raise ImproperlyConfigured(f"FUSEBOARD_TLS_KEY_FILE: {error}.") from error

    def renewing(_config: Any, load: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        return renewing_context(certificate, key, load)

    return {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_context_factory": renewing}


def renewing_context(
    certificate: str, key: str, load: Callable[[], ssl.SSLContext] | None = None
) -> ssl.SSLContext:
    """A context of a server that reads both files again when they change. ``load`` makes one of the files.

    Raises ``OSError`` if the files cannot be used now. Later, such files are logged, and the last good pair
    stays in use.
    """

    def of_files() -> ssl.SSLContext:
        _check_key(key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context

    load = load or of_files
    files = (Path(certificate), Path(key))
    outer = newest = load()
    stamps, looked_at, lock = _stamps(files), time.monotonic(), threading.Lock()

    def use_newest(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal newest, stamps, looked_at
        with lock:
            now = time.monotonic()
            if now - looked_at >= LOOK_S:
                looked_at = now
                found = _stamps(files)
                if found != stamps:
                    stamps = found
                    try:
                        _check_key(key)
                        newest = load()
                        log.info("tls.certificate_renewed", file=certificate)
                    except OSError as error:
                        log.error("tls.certificate_not_renewed", file=certificate, problem=str(error))
            connection.context = newest

    # OpenSSL calls it in each handshake, with or without a name of the server.
    outer.sni_callback = use_newest
    return outer


def _check_key(file: str) -> None:
    """Raises ``OSError``. OpenSSL would ask on the terminal for a passphrase, and block the process."""
    if re.search(rb"^(-----BEGIN|Proc-Type:) .*ENCRYPTED", Path(file).read_bytes(), re.MULTILINE):
        raise OSError("the key has a passphrase, so no process can read it: store it without one")


def _stamps(files: tuple[Path, ...]) -> list[tuple[int, int, int] | None]:
    """Figures that change when a file, or a link to it, is replaced or written."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
    return found
