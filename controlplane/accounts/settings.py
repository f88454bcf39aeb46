"""How people log in: settings of allauth, and the part of them that can be configured."""

from typing import Any

from django.core.exceptions import ImproperlyConfigured

from controlplane import env

#: Apps for the login with a provider. No other process than web needs them.
LOGIN = ["allauth.socialaccount", "allauth.socialaccount.providers.openid_connect"]
APPS = ["allauth", "allauth.account", "allauth.mfa", *LOGIN]
#: The name of the one provider in URLs.
PROVIDER = "company"
_ROLES = ("viewer", "operator", "admin")


def mfa_roles() -> frozenset[str]:
    """Roles that require a second factor. Raises ``ImproperlyConfigured``."""
    roles = frozenset(env.words("FUSEBOARD_MFA_ROLES", []))
    if not roles <= set(_ROLES):
        raise ImproperlyConfigured(f"FUSEBOARD_MFA_ROLES must list some of: {', '.join(_ROLES)}.")
    return roles


def oidc_roles() -> dict[str, str]:
    """Group at the OIDC provider -> role. Raises ``ImproperlyConfigured``."""
    found = {}
    for pair in env.words("FUSEBOARD_OIDC_ROLES", []):
        group, _, role = pair.rpartition("=")
        if not group or role not in _ROLES:
            raise ImproperlyConfigured(
                f"FUSEBOARD_OIDC_ROLES must list group=role, where role is one of: {', '.join(_ROLES)}."
            )
        found[group] = role
    return found


def oidc_name() -> str:
    """The name of the provider that people see; empty when there is none."""
    return env.text("FUSEBOARD_OIDC_NAME", "company account") if env.text("FUSEBOARD_OIDC_URL") else ""


def oidc() -> dict[str, Any]:
    """allauth's settings for the one OIDC provider, or none. Raises ``ImproperlyConfigured``."""
    url = env.text("FUSEBOARD_OIDC_URL")
    if not url:
        return {}
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        raise ImproperlyConfigured("FUSEBOARD_OIDC_URL must start with https://")
    client, secret = env.text("FUSEBOARD_OIDC_CLIENT_ID"), env.text("FUSEBOARD_OIDC_CLIENT_SECRET")
    if not client or not secret:
        raise ImproperlyConfigured(
            "FUSEBOARD_OIDC_CLIENT_ID and FUSEBOARD_OIDC_CLIENT_SECRET must be set with FUSEBOARD_OIDC_URL."
        )
    app = {
        "provider_id": PROVIDER,
        "name": oidc_name(),
        "client_id": client,
        "secret": secret,
        "settings": {"server_url": url.rstrip("/"), "oauth_pkce_enabled": True},
    }
    return {"openid_connect": {"APPS": [app]}}


def allauth(*, plain_http: bool) -> dict[str, Any]:
    return {
        "ACCOUNT_ADAPTER": "controlplane.accounts.allauth_adapter.Adapter",
        "ACCOUNT_FORMS": {"login": "controlplane.accounts.allauth_adapter.Form"},
        "ACCOUNT_LOGIN_METHODS": {"username"},
        "ACCOUNT_SIGNUP_FIELDS": ["username*", "password1*"],
        "ACCOUNT_EMAIL_VERIFICATION": "none",
        "ACCOUNT_SESSION_REMEMBER": True,
        "ACCOUNT_LOGOUT_REDIRECT_URL": "/login",
        "ACCOUNT_DEFAULT_HTTP_PROTOCOL": "http" if plain_http else "https",
        # Only failures count: a correct password is never slowed down.
        # A correct code resets its count of an address, so there is another one: ``guesses``.
        "ACCOUNT_RATE_LIMITS": {"login": "60/m/ip", "login_failed": "20/m/ip,5/5m/key"},
        "MFA_ADAPTER": "controlplane.accounts.mfa.Adapter",
        "MFA_FORMS": {
            "authenticate": "controlplane.accounts.code_forms.AuthenticateForm",
            "reauthenticate": "controlplane.accounts.code_forms.ReauthenticateForm",
        },
        "MFA_SUPPORTED_TYPES": ["totp", "recovery_codes"],
        "MFA_TOTP_ISSUER": "Fuseboard",
        # A phone's clock may be half a minute off.
        "MFA_TOTP_TOLERANCE": 1,
        "SOCIALACCOUNT_ADAPTER": "controlplane.accounts.oidc.Adapter",
        "SOCIALACCOUNT_PROVIDERS": oidc(),
        "SOCIALACCOUNT_EMAIL_AUTHENTICATION": False,
        "SOCIALACCOUNT_AUTO_SIGNUP": True,
        # A link and not a form, because our CSP lets forms post to our own pages only.
        "SOCIALACCOUNT_LOGIN_ON_GET": True,
        "SOCIALACCOUNT_STORE_TOKENS": False,
        "SOCIALACCOUNT_REQUESTS_TIMEOUT": 5,
    }
