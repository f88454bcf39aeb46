"""The ticket of an override: an address, or a key that ``FUSEBOARD_TICKET_URL`` makes one of."""

import re
from urllib.parse import quote, urlsplit

from django.conf import settings

from controlplane.validation import is_printable

LONGEST = 300
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}-[0-9]{1,10}|#?[0-9]{1,10}", re.ASCII)


def ticket_problem(ticket: str) -> str:
    """Why this is not a ticket; empty if it is one, or if none is given."""
    if not ticket:
        return ""
    if len(ticket) > LONGEST:
        return f"Use at most {LONGEST} characters."
    if _KEY.fullmatch(ticket):
        if settings.TICKET_URL:
            return ""
        return "Enter the address of the ticket, with https://. Keys work once FUSEBOARD_TICKET_URL is set."
    if _is_address(ticket):
        return ""
    keys = " or a key such as OPS-4821" if settings.TICKET_URL else ""
    return f"Enter an address with http:// or https://{keys}."


def ticket_url(ticket: str) -> str:
    """The address of a ticket; empty for none, and for a key while no base is configured.

    Checked again: the value may be of a row that something else wrote.
    """
    if _is_address(ticket):
        return ticket
    if settings.TICKET_URL and _KEY.fullmatch(ticket):
        address: str = settings.TICKET_URL.replace("{key}", quote(ticket.removeprefix("#"), safe=""))
        return address
    return ""


def ticket_words(ticket: str) -> str:
    """A short name: the key, or of an address its host and its last part."""
    if not _is_address(ticket):
        return ticket
    parts = urlsplit(ticket)
    last = parts.path.rstrip("/").rpartition("/")[2]
    return f"{parts.hostname} {last}".strip()[:60]


def _is_address(text: str) -> bool:
    if not text.startswith(("http://", "https://")) or not is_printable(text) or any(map(str.isspace, text)):
        return False
    try:
        parts = urlsplit(text)
        # A name before the host makes a link look as if it led elsewhere. A wrong port raises when read.
        return bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        return False
