"""The address at which people open the pages: what commands print."""

from argparse import ArgumentParser, ArgumentTypeError

from django.conf import settings
from django.core.management.base import BaseCommand

from controlplane import env
from controlplane.installation import COMMAND

#: Where ``manage.py web`` serves without options.
LOCAL = "http://127.0.0.1:8000"
#: A process that listens on every address is opened on this machine by its loopback address.
_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - only replaced, never listened on


def people_open() -> str:
    """The first of ``FUSEBOARD_ORIGINS``; without them, the address of ``manage.py web`` without options."""
    return settings.ORIGINS[0] if settings.ORIGINS else LOCAL


def served_at(scheme: str, host: str, port: int) -> str:
    """The address of this process in a browser on this machine."""
    named = f"[{host}]" if ":" in host else host
    return f"{scheme}://{_EVERY_ADDRESS.get(host, named)}:{port}"


def print_link(command: BaseCommand, path: str, *, address: str) -> None:
    """Print the link to a page. Without a known address, print what to do if ``web`` uses another port."""
    command.stdout.write(f"{address or people_open()}{path}")
    if not (address or settings.ORIGINS):
        command.stderr.write(
            f"If `{COMMAND} web` prints another address than {LOCAL}, begin the link with that address."
        )


def add_address(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        type=_origin,
        help=f"where people open the pages (default: the first of FUSEBOARD_ORIGINS, or {LOCAL})",
    )


def _origin(text: str) -> str:
    address = text.rstrip("/")
    if not env.is_origin(address):
        raise ArgumentTypeError(f"{text!r} is not an address such as {LOCAL}.")
    return address
