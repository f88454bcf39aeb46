"""Certificates of web and gateway, where they serve TLS themselves instead of a proxy in front."""

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from controlplane import env


def uvicorn_options() -> dict[str, Any]:
    """``ssl_certfile`` and ``ssl_keyfile``, or nothing. Raises ``ImproperlyConfigured``."""
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
    return {"ssl_certfile": certificate, "ssl_keyfile": key}
