"""Secrets of second factors, stored encrypted: read access to the tables is not enough to make codes."""

from allauth.mfa.adapter import DefaultMFAAdapter
from cryptography.fernet import InvalidToken
from django.core.exceptions import ValidationError

from controlplane.accounts.second_factors import box

#: In forms for a code.
UNREADABLE = (
    "Your second factor cannot be read, because FUSEBOARD_SECRET_KEY was changed. Ask an admin to remove it."
    " Then log in, and add it again."
)


class Adapter(DefaultMFAAdapter):  # type: ignore[misc]
    def encrypt(self, text: str) -> str:
        return box().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        """Decrypt a secret, also one that was encrypted under an earlier key. Raises ``ValidationError``."""
        try:
            return box().decrypt(encrypted_text.encode()).decode()
        except InvalidToken as error:
            raise ValidationError(UNREADABLE) from error
