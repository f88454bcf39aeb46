"""Read settings from the environment, strictly.

An error names the variable and says what is valid; it never repeats the value, which may be a
secret. ``NAME_FILE`` may replace any ``NAME``, so that secrets can be mounted as files.
"""

import os
import re
from base64 import b64decode
from datetime import time
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ImproperlyConfigured

from fuseboard.contract.refusal_token import EXPLAIN_URL_PATTERN

_FLAGS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_WHOLE_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]", re.ASCII)
_LISTEN = re.compile(r"(?:(?P<host>[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):)?(?P<port>[0-9]{1,5})", re.ASCII)
#: Before the address of gateways: it stands for each address that the name has.
LOOKED_UP = "dns+"
#: No part of a name is empty or longer than 63 characters: no such name can be looked up.
_NAME = r"(?:[A-Za-z0-9-]{1,63}\.)*[A-Za-z0-9-]{1,63}\.?"
_ORIGIN = re.compile(rf"https?://(?:{_NAME}|\[[0-9A-Fa-f:]+\])(?::(?P<port>[0-9]{{1,5}}))?")


def text(name: str, default: str = "") -> str:
    """The variable's value, or the content of the file that ``NAME_FILE`` names; else ``default``."""
    value, file = os.environ.get(name), os.environ.get(f"{name}_FILE")
    if value is not None and file is not None:
        raise ImproperlyConfigured(f"{name} and {name}_FILE are both set; set one of them.")
    if file is not None:
        try:
            value = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ImproperlyConfigured(f"{name}_FILE names a file that cannot be read as text.") from error
    value = (value or "").strip()
    if "\x00" in value or "\n" in value:
        raise ImproperlyConfigured(f"{name} must be one line without control characters.")
    return value or default


def flag(name: str, default: bool = False) -> bool:
    value = text(name)
    if not value:
        return default
    try:
        return _FLAGS[value.lower()]
    except KeyError:
        raise ImproperlyConfigured(f"{name} must be one of 1, 0, true, false, yes, no, on, off.") from None


def integer(name: str, default: int, *, at_least: int, at_most: int) -> int:
    value = text(name)
    if not value:
        return default
    if not _WHOLE_NUMBER.fullmatch(value) or not at_least <= int(value) <= at_most:
        raise ImproperlyConfigured(f"{name} must be a whole number from {at_least} to {at_most}.")
    return int(value)


def choice(name: str, allowed: tuple[str, ...]) -> str:
    """One of ``allowed``; the first is the default."""
    value = text(name, allowed[0])
    if value not in allowed:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(allowed)}.")
    return value


def time_of_day(name: str, default: str) -> tuple[time, ZoneInfo]:
    """A time with its zone: ``08:00 Europe/Berlin``."""
    clock, _, zone = text(name, default).partition(" ")
    try:
        if not _TIME.fullmatch(clock):
            raise ValueError
        return time.fromisoformat(clock), ZoneInfo(zone.strip())
    except (ValueError, ZoneInfoNotFoundError, OSError):
        raise ImproperlyConfigured(
            f"{name} must be a time and the name of its zone, like 08:00 Europe/Berlin."
        ) from None


def words(name: str, default: list[str]) -> list[str]:
    """A comma-separated list."""
    return [word.strip() for word in text(name).split(",") if word.strip()] or default


def pairs(name: str) -> dict[str, str]:
    """A list of ``name=value`` with commas between them."""
    found = {}
    for word in words(name, []):
        key, value = (part.strip() for part in word.partition("=")[::2])
        if not key or not value or key in found:
            raise ImproperlyConfigured(
                f"{name} must list name=value, each name once, with commas between them."
            )
        found[key] = value
    return found


def origins(name: str) -> list[str]:
    """A list of ``scheme://host[:port]``, exactly as browsers send them."""
    found = words(name, [])
    for origin in found:
        if not is_origin(origin):
            raise ImproperlyConfigured(
                f"{name} must list origins such as https://fuseboard.example.com or http://127.0.0.1:8000,"
                " separated by commas, without a path."
            )
    return found


def gateways(name: str) -> list[str]:
    """A list of ``http://host:port`` of gateways. ``dns+`` before one stands for each address of its name."""
    found = words(name, [])
    for address in found:
        if not is_origin(address.removeprefix(LOOKED_UP)) or address.startswith(f"{LOOKED_UP}https"):
            raise ImproperlyConfigured(
                f"{name} must list addresses such as http://gateway-1:8001, or dns+http://gateway:8001 for"
                " all addresses of a name, separated by commas, without a path. dns+https is not possible:"
                " name each gateway as its certificate does."
            )
    return found


def is_origin(text: str) -> bool:
    match = _ORIGIN.fullmatch(text)
    return match is not None and int(match["port"] or 0) <= 65_535


def networks(name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """A list of networks with commas between them."""
    try:
        return tuple(ip_network(part.strip()) for part in text(name).split(",") if part.strip())
    except ValueError:
        raise ImproperlyConfigured(
            f"{name} must be a list of networks, like 10.1.0.0/16,fd00:1::/64."
        ) from None


def url(name: str, schemes: tuple[str, ...]) -> str:
    """The URL of a server, or an empty text when the variable is not set."""
    value = text(name)
    if value and value.partition("://")[0] not in schemes:
        raise ImproperlyConfigured(f"{name} must start with one of: {', '.join(s + '://' for s in schemes)}")
    return value


def webhook_secrets(name: str) -> list[str]:
    """Secrets of Standard Webhooks, with commas between them: the new one, and the one before."""
    found = words(name, [])
    for secret in found:
        try:
            key = b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            key = b""
        if not secret.startswith("whsec_") or not 24 <= len(key) <= 64:
            raise ImproperlyConfigured(
                f"{name} must be whsec_ and the base64 of 24 to 64 random bytes, or two of them with a comma"
                " between them while the secret changes. To make one: echo whsec_$(openssl rand -base64 32)"
            )
    return found


def link(name: str) -> str:
    """The address of something, with ``{key}`` where its key belongs; empty when it is not set."""
    value = text(name)
    if value and (not value.startswith(("http://", "https://")) or value.count("{key}") != 1):
        raise ImproperlyConfigured(
            f"{name} must be an address that contains {{key}} once, such as"
            " https://tickets.example.com/browse/{key}"
        )
    return value


def page(name: str) -> str:
    """The address of a page, to which pods add a fragment; empty when it is not set."""
    value = text(name)
    if not re.match(EXPLAIN_URL_PATTERN, value):
        raise ImproperlyConfigured(
            f"{name} must be the address of a page without a fragment, such as"
            " https://fuseboard.example.com/explain"
        )
    return value


def listen_address(name: str) -> tuple[str, int] | None:
    """A port of this machine, or ``host:port``, to listen on; ``None`` when the variable is not set."""
    value = text(name)
    if not value:
        return None
    match = _LISTEN.fullmatch(value)
    if match is None or int(match["port"]) > 65_535:
        raise ImproperlyConfigured(
            f"{name} must be a port, such as 9101, or host:port, such as 0.0.0.0:9101."
        )
    return (match["host"] or "127.0.0.1").strip("[]"), int(match["port"])
