"""Collects the problems of an edit, so that a form can show all of them at once."""

import re
import unicodedata
from collections.abc import Iterable
from datetime import datetime, timedelta
from difflib import get_close_matches
from enum import StrEnum

from django.utils import timezone

from controlplane.errors import InvalidEdit
from fuseboard.contract.descriptors import DOMAIN_RULE, is_domain
from fuseboard.contract.words import UNREADABLE, is_slug, is_subject

#: A reason must not make an audit read differently than it is. With ``True``, a text of several lines.
_UNPRINTABLE = {
    False: re.compile(f"[{UNREADABLE}]"),
    True: re.compile(rf"(?![\t\n\r])[{UNREADABLE}]"),
}
#: Alphabets with letters that cannot be told from another's by eye.
_ALIKE = {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC"}


def is_printable(text: str, *, lines: bool = False) -> bool:
    """Whether the text has no control characters; with ``lines``, it may have several lines."""
    return _UNPRINTABLE[lines].search(text) is None


def printable(text: str, *, lines: bool = False) -> str:
    """The text with a space in the place of each control character; with ``lines``, it keeps its lines."""
    return _UNPRINTABLE[lines].sub(" ", text)


def is_plain_key(key: str) -> bool:
    """Whether a new tenant may have this key: a reader must not mistake it for another key."""
    if key.isascii():
        return key == key.strip()
    invisible = any(unicodedata.category(character) == "Cf" for character in key)
    alphabets = {
        unicodedata.name(character, "").partition(" ")[0] for character in key if character.isalpha()
    }
    plain = (
        unicodedata.is_normalized("NFKC", key) and not invisible and key == key.strip() and is_printable(key)
    )
    return plain and len(alphabets & _ALIKE) <= 1


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence with the known names that are most like an unknown one; empty without any."""
    found = get_close_matches(name[:200], list(known), n=3)
    return f" Did you mean {' or '.join(found)}?" if found else ""


#: The advice about a key that is not plain.
PLAIN_KEY = (
    "Use plain characters (Unicode NFKC) of one alphabet, none that is invisible, and no blanks at the ends."
)

LONGEST_SLUG = 64
#: Beside the field of a name.
SLUG_RULE = "letters, digits, dots, dashes or underscores; begins and ends with a letter or digit"

SHORTEST_REASON = 8
LONGEST_REASON = 500
#: Beside a reason before it is wrong.
REASON_RULE = f"at least {SHORTEST_REASON} characters"
MISSING_REASON = f"Say why, in {SHORTEST_REASON} characters or more: everyone can read it."


class Problems:
    """Field -> its problems."""

    def __init__(self) -> None:
        self.errors: dict[str, list[str]] = {}

    def add(self, field: str, message: str) -> None:
        self.errors.setdefault(field, []).append(message)

    def settle(self) -> None:
        """Raise ``InvalidEdit`` when there are problems."""
        if self.errors:
            raise InvalidEdit(self.errors)

    def whole(self, field: str, value: object, least: int, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.add(field, f"Enter a whole number from {least:,} to {most:,}.")

    def flag(self, field: str, value: object) -> None:
        if not isinstance(value, bool):
            self.add(field, "Enter true or false.")

    def choice(self, field: str, value: object, words: type[StrEnum]) -> None:
        if value not in list(words):
            self.add(field, f"Choose one of: {', '.join(words)}.")

    def slug(self, field: str, value: object) -> None:
        if not isinstance(value, str) or not is_slug(value):
            self.add(
                field,
                "Use 1 to 64 letters, digits, dots, dashes or underscores,"
                " beginning and ending with a letter or digit.",
            )

    def domain(self, field: str, value: object) -> None:
        if not isinstance(value, str) or not is_domain(value):
            self.add(field, DOMAIN_RULE)

    def subject(self, field: str, value: object) -> None:
        if not isinstance(value, str) or not is_subject(value):
            self.add(field, "Use 1 to 200 characters without control characters.")

    def text(self, field: str, value: object, longest: int, *, lines: bool = False) -> None:
        """A text of one line, or with ``lines`` of several."""
        if not isinstance(value, str):
            self.add(field, "Enter text.")
        elif not is_printable(value, lines=lines):
            self.add(field, f"Remove the {'' if lines else 'line breaks and '}control characters.")
        elif len(value) > longest:
            self.add(field, f"Use at most {longest:,} characters.")

    def moment(self, field: str, value: object) -> None:
        """A time with its zone, as text."""
        try:
            naive = datetime.fromisoformat(str(value)).tzinfo is None
        except ValueError:
            naive = True
        if naive or not isinstance(value, str):
            self.add(field, "Enter a time with its zone, in quotes, like '2030-01-31T18:00:00+00:00'.")

    def end(self, field: str, at: datetime, longest: timedelta, too_late: str) -> None:
        """A time in the future, at most ``longest`` from now."""
        if timezone.is_naive(at):
            self.add(field, "Give the time zone.")
        elif at <= timezone.now():
            self.add(field, "Choose a time in the future.")
        elif at > timezone.now() + longest:
            self.add(field, too_late)

    def reason(self, value: object) -> None:
        self.text("reason", value, LONGEST_REASON, lines=True)
        seen = [c for c in value if unicodedata.category(c) != "Cf"] if isinstance(value, str) else []
        if isinstance(value, str) and len("".join(seen).strip()) < SHORTEST_REASON:
            self.add("reason", MISSING_REASON)


def check_reason(reason: object) -> None:
    """Raise ``InvalidEdit`` unless the reason says enough."""
    problems = Problems()
    problems.reason(reason)
    problems.settle()
