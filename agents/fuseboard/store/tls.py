"""Certificates: which servers a connection trusts."""

import ssl
from functools import lru_cache
from pathlib import Path


def tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Checks certificate and name of the server, with ``ca_file`` or the authorities of the system.

    Raises ``OSError`` when the file cannot be read or contains no certificate.
    """
    changed = Path(ca_file).stat().st_mtime_ns if ca_file else 0
    return _context(ca_file, changed)


@lru_cache(maxsize=4)
def _context(ca_file: str, changed: int) -> ssl.SSLContext:
    # Reading the bundle of the system takes longer than a decision may.
    return ssl.create_default_context(cafile=ca_file or None)
