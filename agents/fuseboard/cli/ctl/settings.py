"""The address and the token of the API, from the environment, so that no token is in a shell history."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from fuseboard.cli.ctl.exit_codes import Exit, Failed
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, is_slug

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CtlSettings:
    #: Up to and including ``/api/v1``.
    api_url: str
    token: str = field(repr=False)
    environment: str = DEFAULT_ENVIRONMENT

    @classmethod
    def from_env(cls, *, environment: str = "", environ: Mapping[str, str] | None = None) -> Self:
        """Raises ``Failed``, naming the variable and never its value."""
        variables = os.environ if environ is None else environ
        chosen = environment or variables.get("FUSEBOARD_ENVIRONMENT", "").strip() or DEFAULT_ENVIRONMENT
        if not is_slug(chosen):
            raise Failed(Exit.USAGE, "the environment must be 1 to 64 letters, digits, '.', '_' or '-'")
        return cls(api_url=_url(variables), token=_token(variables), environment=chosen)


def _url(variables: Mapping[str, str]) -> str:
    url = variables.get("FUSEBOARD_API_URL", "").strip().rstrip("/")
    if not url:
        raise Failed(
            Exit.USAGE,
            "FUSEBOARD_API_URL is not set: use the address of the dashboard, like https://fuseboard.example.com",
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    plain = re.fullmatch(r"[\x21-\x7e]+", url)
    if not plain or parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise Failed(Exit.USAGE, "FUSEBOARD_API_URL must be an address like https://fuseboard.example.com")
    if parts.username or parts.password:
        raise Failed(
            Exit.USAGE,
            "FUSEBOARD_API_URL must not contain a password: put the token into FUSEBOARD_API_TOKEN_FILE",
        )
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise Failed(
            Exit.USAGE,
            "FUSEBOARD_API_URL must begin with https://: otherwise others could read the token",
        )
    return url if url.endswith("/api/v1") else f"{url}/api/v1"


def _token(variables: Mapping[str, str]) -> str:
    value = variables.get("FUSEBOARD_API_TOKEN", "").strip()
    path = variables.get("FUSEBOARD_API_TOKEN_FILE", "").strip()
    if value and path:
        raise Failed(Exit.USAGE, "FUSEBOARD_API_TOKEN and FUSEBOARD_API_TOKEN_FILE are both set: keep one")
    if path:
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not valid UTF-8 text"
            reason = f"FUSEBOARD_API_TOKEN_FILE cannot be read: {why}"
            raise Failed(Exit.USAGE, reason) from None
    if not value:
        raise Failed(
            Exit.USAGE,
            "FUSEBOARD_API_TOKEN is not set, nor FUSEBOARD_API_TOKEN_FILE: an admin creates a token with "
            "`manage.py create_api_token`, or through the API",
        )
    if not re.fullmatch(r"[\x21-\x7e]+", value):
        raise Failed(
            Exit.USAGE, "FUSEBOARD_API_TOKEN contains characters that no token has (quotes? a line break?)"
        )
    return value
