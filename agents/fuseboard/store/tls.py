"""Whom to believe on the other end of a connection."""

import ssl
from functools import lru_cache
from pathlib import Path


def tls_context(ca_file: str = "") -> ssl.SSLContext:
    """Checks certificate and name of the server, by ``ca_file`` or by the system's authorities.

    Raises ``OSError`` when the file cannot be read or holds no certificate.
    """
    changed = Path(ca_file).stat().st_mtime_ns if ca_file else 0
    return _context(ca_file, changed)


@lru_cache(maxsize=4)
def _context(ca_file: str, changed: int) -> ssl.SSLContext:
    # Reading the system's bundle takes longer than a decision may.
    return ssl.create_default_context(cafile=ca_file or None)
