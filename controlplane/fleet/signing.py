"""What web processes send to gateways, signed with a key made of ``FUSEBOARD_SECRET_KEY``.

Nothing secret travels, whatever the network; each kind of message has a salt of its own.
"""

import ssl
from hmac import compare_digest
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.crypto import salted_hmac

_SCHEME = "Fuseboard-HMAC "


class Unanswered(Exception):
    """A gateway did not do as it was asked; the message says which and why."""


def sign(body: bytes, *, salt: str, secret: str | None = None) -> str:
    """The Authorization header for this body."""
    return _SCHEME + salted_hmac(salt, body, secret=secret, algorithm="sha256").hexdigest()


def is_signed(body: bytes, authorization: bytes, *, salt: str) -> bool:
    """Whether a web process of ours wrote this body; every key is compared, in constant time."""
    found = [
        compare_digest(authorization, sign(body, salt=salt, secret=secret).encode())
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    ]
    return any(found)


def post(url: str, path: str, body: bytes, *, salt: str, timeout_s: float, most_bytes: int) -> bytes:
    """What the gateway at ``url`` answers. Raises ``Unanswered``."""
    place = urlsplit(url)
    host = place.hostname or ""
    connection = (
        HTTPSConnection(
            host,
            place.port,
            timeout=timeout_s,
            context=ssl.create_default_context(cafile=settings.CA_FILE or None),
        )
        if place.scheme == "https"
        else HTTPConnection(host, place.port, timeout=timeout_s)
    )
    headers = {"Authorization": sign(body, salt=salt), "Content-Type": "application/json"}
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        said = answer.read(most_bytes)
    except (OSError, HTTPException) as error:
        raise Unanswered(f"{url} does not answer ({error})") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Unanswered(f"{url} answers {answer.status}: {said[:1_000].decode(errors='replace')}")
    return said
