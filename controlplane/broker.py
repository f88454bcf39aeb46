"""Celery's broker: one Redis or Valkey server, or the primary that Sentinels watch.

``FUSEBOARD_BROKER_URL`` has the form of ``FUSEBOARD_REDIS_URL``. Celery writes Sentinels differently: each
has a URL of its own, and the name of the primary is an option of the transport.
"""

import ssl
from typing import Any
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

from fuseboard.contract.store_url import StoreUrl

SCHEMES = ("redis", "rediss", "redis+socket", "unix", "redis+sentinel")


def broker_url(url: str) -> str:
    """The URL as Celery reads it. Raises ``ImproperlyConfigured``."""
    if not url.startswith("redis+sentinel:"):
        return url
    store = _parse(url)
    login = ":".join(quote(part, safe="") for part in (store.username, store.password))
    login = f"{login}@" if login != ":" else ""
    # A host with colons is an IPv6 address.
    places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in store.addresses)
    return ";".join(f"sentinel://{login}{place}/{store.database}" for place in places)


def transport_options(url: str) -> dict[str, Any]:
    """The options of Celery's transport beside the URL."""
    options: dict[str, Any] = {"visibility_timeout": 60, "socket_timeout": 5, "socket_connect_timeout": 2}
    if url.startswith("redis+sentinel:"):
        store = _parse(url)
        options["master_name"] = store.primary
        # A Sentinel that is away is passed over after this time.
        options["sentinel_kwargs"] = {
            "username": store.sentinel_username or None,
            "password": store.sentinel_password or None,
            "socket_timeout": 1,
            "socket_connect_timeout": 1,
        }
    return options


def tls_options(url: str, ca_file: str) -> dict[str, Any] | None:
    """How the server proves who it is; ``None`` without TLS."""
    if not url.startswith("rediss:"):
        return None
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_ca_certs": ca_file or None}


def _parse(url: str) -> StoreUrl:
    try:
        return StoreUrl.parse(url)
    except ValueError as error:
        raise ImproperlyConfigured(f"FUSEBOARD_BROKER_URL {error}.") from None
