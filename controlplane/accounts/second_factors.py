"""Encrypted secrets of second factors, for every process: gateways and workers do not load allauth."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.db import connection

_STORED = (
    "SELECT factor.user_id, factor.data FROM mfa_authenticator factor"
    " JOIN accounts_user person ON person.id = factor.user_id WHERE person.is_active"
)


def box() -> MultiFernet:
    """The first key encrypts; those that are still accepted decrypt."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def secrets_of(data: Mapping[str, Any]) -> dict[str, str]:
    """Name -> encrypted secret, of the column ``data``."""
    return {name: data[name] for name in ("secret", "seed") if name in data}


def renewed(encrypted_text: str) -> str | None:
    """Encrypt a secret under the newest key; ``None`` if no accepted key encrypted it."""
    try:
        return box().rotate(encrypted_text.encode()).decode()
    except InvalidToken:
        return None


def unreadable_second_factors() -> set[int]:
    """The ids of active people with a second factor that no accepted key decrypts. They cannot log in."""
    with connection.cursor() as cursor:
        cursor.execute(_STORED)
        rows = cursor.fetchall()
    opened = box()
    return {
        user
        for user, data in rows
        if not all(_opens(opened, secret) for secret in secrets_of(json.loads(data)).values())
    }


def _opens(opened: MultiFernet, secret: str) -> bool:
    try:
        opened.decrypt(secret.encode())
    except InvalidToken:
        return False
    return True


def _derived(key: str) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"fuseboard second factors")
    return urlsafe_b64encode(derive.derive(key.encode()))
