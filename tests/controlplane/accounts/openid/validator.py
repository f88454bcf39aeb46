"""What the provider returns about people, and how a test breaks it."""

from typing import Any

from oauth2_provider.oauth2_validators import OAuth2Validator

#: ``claims`` about every person. The rest breaks the provider: ``id_token`` and ``userinfo`` replace claims,
#: ``without`` lists claims that the ID token lacks, ``no_id_token`` leaves it out, and ``any_verifier`` turns
#: PKCE off.
arranged: dict[str, Any] = {}


class Validator(OAuth2Validator):  # type: ignore[misc] # untyped
    #: All claims, whatever the scope.
    oidc_claim_scope = None

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        return {"sub": str(request.user.pk), **arranged.get("claims", {})}

    def get_userinfo_claims(self, request: Any) -> dict[str, Any]:
        return {**super().get_userinfo_claims(request), **arranged.get("userinfo", {})}

    def get_id_token_dictionary(self, token: Any, handler: Any, request: Any) -> tuple[dict[str, Any], Any]:
        claims, expires = super().get_id_token_dictionary(token, handler, request)
        claims = {**claims, **arranged.get("id_token", {})}
        return {name: value for name, value in claims.items() if name not in _missing()}, expires

    def finalize_id_token(self, id_token: dict[str, Any], token: Any, handler: Any, request: Any) -> Any:
        for name in _missing():
            id_token.pop(name, None)
        if "nonce" in _missing():
            request.nonce = None
        return super().finalize_id_token(id_token, token, handler, request)

    def get_code_challenge(self, code: str, request: Any) -> str | None:
        return None if arranged.get("any_verifier") else super().get_code_challenge(code, request)

    def is_pkce_required(self, client_id: str, request: Any) -> bool:
        return not arranged.get("any_verifier")


def _missing() -> list[str]:
    return list(arranged.get("without", []))
