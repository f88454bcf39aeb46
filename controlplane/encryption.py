"""Encrypts what Postgres or a disk keeps, with keys derived from ``FUSEBOARD_SECRET_KEY``.

Read access to the tables, or to a backup of them, is then not enough to use a secret.
"""

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.apps import apps
from django.conf import settings
from django.db import models
from django.utils.crypto import salted_hmac


def cipher(salt: str, name: str) -> MultiFernet:
    """The first key encrypts; those that are still accepted decrypt."""
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet(
        [
            Fernet(urlsafe_b64encode(salted_hmac(salt, name, secret=key, algorithm="sha256").digest()))
            for key in keys
        ]
    )


def fingerprints() -> tuple[str, ...]:
    """Fingerprints of the accepted keys; that of ``FUSEBOARD_SECRET_KEY`` is the first.

    A fingerprint identifies a key. It reveals nothing about the key, or about what is derived from it.
    """
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return tuple(
        salted_hmac("fuseboard.fingerprint", "key", secret=key, algorithm="sha256").hexdigest()[:16]
        for key in keys
    )


if TYPE_CHECKING:
    # Only its stubs have parameters.
    _TextField = models.TextField[str, str]
else:
    _TextField = models.TextField


class EncryptedUrl(_TextField):
    """A URL of which the table has only the encrypted form. No query can compare it.

    One whose key is not accepted any more is read as an empty text.
    """

    _SALT = "fuseboard.column"

    def get_prep_value(self, value: Any) -> Any:
        return None if value is None else self._cipher().encrypt(str(value).encode()).decode()

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        # A release before the encryption may still write, while the others are updated.
        if value is None or _is_plain(value):
            return value
        try:
            return self._cipher().decrypt(value.encode()).decode()
        except InvalidToken:
            return ""

    @classmethod
    def _cipher(cls) -> MultiFernet:
        return cipher(cls._SALT, "text")

    @classmethod
    def renewed(cls, stored: str) -> str | None:
        """A stored text under the newest key, or ``None`` if no accepted key encrypted it."""
        if _is_plain(stored):
            return cls._cipher().encrypt(stored.encode()).decode()
        try:
            return cls._cipher().rotate(stored.encode()).decode()
        except InvalidToken:
            return None


def unreadable_urls(environment: str) -> int:
    """How many URLs of the environment no accepted key decrypts."""
    columns = [
        (model, column)
        for model in apps.get_models()
        for column in model._meta.local_fields
        if isinstance(column, EncryptedUrl)
    ]
    return sum(
        not url
        for model, column in columns
        for url in model._default_manager.filter(environment=environment).values_list(column.name, flat=True)
    )


def _is_plain(stored: str) -> bool:
    """Encrypted texts have no such signs."""
    return "://" in stored
