"""allauth's forms for the code of a second factor, with our limit of failed attempts per address."""

from allauth.account.adapter import get_adapter
from allauth.mfa.base import forms

from controlplane.accounts import guesses


class _Limited:
    def clean_code(self) -> str:
        entry = get_adapter().count_attempt()
        code: str = super().clean_code()  # type: ignore[misc]
        # Correct, or it would have raised.
        guesses.give_back(entry)
        return code


class AuthenticateForm(_Limited, forms.AuthenticateForm):  # type: ignore[misc]
    pass


class ReauthenticateForm(_Limited, forms.ReauthenticateForm):  # type: ignore[misc]
    pass
