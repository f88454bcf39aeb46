"""Parameters that Fuseboard sends to an identity provider, and checks of its answer, beside those of allauth.

allauth checks the state and the PKCE verifier, and of the ID token the issuer, the audience, the expiry,
and that it was not used before. It does not use nonces, and believes the userinfo without an ID token.
"""

from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any

from allauth.socialaccount.providers.base.constants import AuthProcess
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from django.http import HttpRequest, HttpResponse

_NEEDED = ("sub", "exp", "iat")


class Provider(OpenIDConnectProvider):  # type: ignore[misc]
    """Sends a new nonce with each login. The query of the link can change nothing in the request."""

    def get_scope_from_request(self, request: HttpRequest) -> list[str]:
        return list(self.get_scope())

    def get_auth_params_from_request(self, request: HttpRequest, action: str) -> dict[str, str]:
        return dict(self.get_auth_params())

    def redirect(
        self, request: HttpRequest, process: str, next_url: str | None = None, data: Any = None, **kwargs: Any
    ) -> HttpResponse:
        nonce = token_urlsafe(24)
        kwargs["auth_params"] = {**self.get_auth_params(), "nonce": nonce}
        # Whatever the link says: to connect an identity to the account of a session would let a link of an
        # attacker connect the identity of the attacker.
        answer: HttpResponse = super().redirect(
            request, AuthProcess.LOGIN, next_url, data, nonce=nonce, **kwargs
        )
        return answer

    def extract_uid(self, data: dict[str, Any]) -> str:
        """The subject. Raises ``OAuth2Error`` unless it is the one that the ID token was issued for."""
        if not _is_storable(data):
            raise OAuth2Error("A text has a NUL character, or half of a surrogate pair.")
        claims = data.get("id_token")
        if not claims or not all(claims.get(name) for name in _NEEDED):
            raise OAuth2Error(f"The answer needs an id_token with {', '.join(_NEEDED)}.")
        subject = str(claims["sub"])
        if "userinfo" in data and data["userinfo"].get("sub") != claims["sub"]:
            raise OAuth2Error("The sub of the userinfo is not the sub of the id_token.")
        return subject


def check_id_token(sociallogin: Any) -> None:
    """Raise ``OAuth2Error`` unless the ID token was issued for this login at this client."""
    claims = sociallogin.account.extra_data.get("id_token") or {}
    sent = str(sociallogin.state.get("nonce") or "")
    if not sent or not compare_digest(sent.encode(), str(claims.get("nonce", "")).encode()):
        raise OAuth2Error("The nonce of the id_token is not the nonce of this login.")
    client = sociallogin.provider.app.client_id
    several = isinstance(claims.get("aud"), list) and len(claims["aud"]) > 1
    if claims.get("azp", None if several else client) != client:
        raise OAuth2Error("The azp of the id_token is not this client.")


def _is_storable(value: Any) -> bool:
    """Whether Postgres stores every text in what the provider says."""
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= sign <= "\udfff" for sign in value)
        case dict():
            return all(_is_storable(part) for pair in value.items() for part in pair)
        case list():
            return all(map(_is_storable, value))
    return True
