"""Messages from web processes to gateways, signed with a key derived from ``FUSEBOARD_SECRET_KEY``.

No secret is sent, whatever the network. Each kind of message has its own salt.
"""

import ssl
from hmac import compare_digest
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.crypto import salted_hmac

_SCHEME = "Fuseboard-HMAC "


class GatewayCallFailed(Exception):
    """A gateway did not do what it was asked; the message says which and why."""


def sign(body: bytes, *, salt: str, secret: str | None = None) -> str:
    """The Authorization header for this body."""
    return _SCHEME + salted_hmac(salt, body, secret=secret, algorithm="sha256").hexdigest()


def is_signed(body: bytes, authorization: bytes, *, salt: str) -> bool:
    """Whether one of our web processes wrote this body; compares every key, in constant time."""
    found = [
        compare_digest(authorization, sign(body, salt=salt, secret=secret).encode())
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]
    return any(found)


def post(url: str, path: str, body: bytes, *, salt: str, timeout_s: float, most_bytes: int) -> bytes:
    """The response of the gateway at ``url``. Raises ``GatewayCallFailed``."""
    address = urlsplit(url)
    host = address.hostname or ""
    connection = (
        HTTPSConnection(
            host,
            address.port,
            timeout=timeout_s,
            context=ssl.create_default_context(cafile=settings.CA_FILE or None),
        )
        if address.scheme == "https"
        else HTTPConnection(host, address.port, timeout=timeout_s)
    )
    headers = {"Authorization": sign(body, salt=salt), "Content-Type": "application/json"}
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        reply = response.read(most_bytes)
    except (OSError, HTTPException) as error:
        raise GatewayCallFailed(f"{url} does not answer ({error})") from error
    finally:
        connection.close()
    if response.status != 200:
        raise GatewayCallFailed(f"{url} answers {response.status}: {reply[:1_000].decode(errors='replace')}")
    return reply
