"""Secrets of second factors, stored encrypted: read access to the tables is not enough to make codes."""

from base64 import urlsafe_b64encode

from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import Fernet, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings


class Adapter(DefaultMFAAdapter):  # type: ignore[misc]
    def encrypt(self, text: str) -> str:
        return _box().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Decrypt a secret, also one that was encrypted under an earlier key."""
        return _box().decrypt(encrypted_text.encode()).decode()


def renewed(encrypted_text: str) -> str:
    """Encrypt a secret under the newest key."""
    return _box().rotate(encrypted_text.encode()).decode()


def _box() -> MultiFernet:
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    derive = HKDF(algorithm=SHA256(), length=32, salt=None, info=b"fuseboard second factors")
    return urlsafe_b64encode(derive.derive(key.encode()))
