"""Fields of forms. They read what a person typed, and check what the edit function cannot say better."""

import re
from datetime import datetime
from typing import Any

from django import forms

from controlplane.errors import InvalidEdit
from controlplane.validation import LONGEST_REASON, MISSING_REASON, SHORTEST_REASON
from dashboard.words.moments import WRONG, moment_of

#: The format in which a browser sends a date and a time.
MOMENT = "%Y-%m-%dT%H:%M"
NOT_WHOLE = "Enter a whole number."
#: Also with the commas that pages write between thousands.
_WHOLE = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
#: Above what any edit allows. A longer number becomes this one, so that the edit names its bound.
_TOO_LARGE = 10**18


def whole(text: str, field: str, bounds: tuple[int, int] | None = None) -> int:
    """A number. Without ``bounds``, the edit function compares it with what it allows.

    Raises ``InvalidEdit`` for what is none, or is out of bounds.
    """
    number = _whole(text)
    if number is None or (bounds and not bounds[0] <= number <= bounds[1]):
        raise InvalidEdit({field: [whole_words(*bounds) if bounds else NOT_WHOLE]})
    return number


def _whole(text: str) -> int | None:
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        return None
    text = text.replace(",", "")
    digits = text.lstrip("-").lstrip("0")
    size = int(digits or "0") if len(digits) < 19 else _TOO_LARGE
    return -size if text[0] == "-" else size


def missing_words(label: str) -> str:
    """The error for an empty field."""
    return f"Fill in \u201c{label}\u201d."


def whole_words(least: int, most: int, unit: str = "") -> str:
    return f"Enter a whole number{unit} from {least:,} to {most:,}."


def moment(text: str, field: str) -> datetime:
    """A time. Raises ``InvalidEdit`` for what is none."""
    try:
        return moment_of(text)
    except ValueError:
        raise InvalidEdit({field: [WRONG]}) from None


def sent_number(text: str, otherwise: int) -> int:
    """A number that the page put into a form or an address; ``otherwise`` for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise


def lines_of(text: str) -> list[str]:
    """The values of a text with one per line."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def too_long(most: int) -> str:
    return f"Use at most {most:,} characters."


class WholeNumberField(forms.IntegerField):
    """A whole number in a range, which every refusal names."""

    def __init__(self, least: int, most: int, *, unit: str = "", **options: Any) -> None:
        said = whole_words(least, most, unit)
        errors = dict.fromkeys(("required", "invalid", "min_value", "max_value"), said)
        super().__init__(min_value=least, max_value=most, error_messages=errors, **options)

    def to_python(self, value: Any) -> int | None:
        if value is None or not (text := str(value).strip()):
            return None
        if (number := _whole(text)) is None:
            raise forms.ValidationError(self.error_messages["invalid"])
        return number


class BoundedTextField(forms.CharField):
    """Text of at most this number of characters. ``TextField`` leaves other checks to the edit function."""

    def __init__(self, most: int, **options: Any) -> None:
        said = {"max_length": too_long(most)} | options.pop("error_messages", {})
        super().__init__(max_length=most, error_messages=said, **options)


class ReasonField(BoundedTextField):
    def __init__(self) -> None:
        missing = dict.fromkeys(("required", "min_length"), MISSING_REASON)
        super().__init__(LONGEST_REASON, min_length=SHORTEST_REASON, error_messages=missing)


class TextField(forms.Field):
    """Text as typed. With ``most`` it is stripped, and without NUL, which Postgres does not store.

    A longer text is refused: what is cut would be saved without a sign.
    """

    def __init__(self, most: int | None = None, *, initial: str = "") -> None:
        super().__init__(required=False, initial=initial)
        self.most = most

    def to_python(self, value: str | None) -> str:
        text: str = self.initial if value is None else value
        if self.most is None:
            return text
        text = text.replace("\x00", "").strip()
        if len(text) > self.most:
            raise forms.ValidationError(too_long(self.most))
        return text


class LinesField(TextField):
    """Text with one value per line. Empty lines do not count."""

    def clean(self, value: str | None) -> list[str]:
        return lines_of(super().clean(value))


class TextsField(forms.Field):
    """Every value that has this name."""

    widget = forms.MultipleHiddenInput

    def __init__(self) -> None:
        super().__init__(required=False)

    def to_python(self, value: Any) -> tuple[str, ...]:
        return tuple(value)


class WholeField(forms.Field):
    """A typed whole number. If it is not required, an empty text is ``empty``.

    ``bounds`` are only for the error: the edit function compares the number with what it allows.
    """

    def __init__(
        self, *, required: bool = True, empty: int | None = None, bounds: tuple[int, int] | None = None
    ) -> None:
        self.said = whole_words(*bounds) if bounds else NOT_WHOLE
        super().__init__(required=required, error_messages={"required": self.said})
        self.empty = empty

    def to_python(self, value: str | None) -> int | None:
        if not (text := (value or "").strip()):
            return self.empty
        if (number := _whole(text)) is None:
            raise forms.ValidationError(self.said)
        return number


class SentNumberField(forms.Field):
    """A number that the page put into the form. Other text is ``otherwise``, which the edit refuses."""

    def __init__(self, otherwise: int = -1, *, initial: str = "") -> None:
        super().__init__(required=False, initial=initial)
        self.otherwise = otherwise

    def to_python(self, value: str | None) -> int:
        return sent_number(self.initial if value is None else value, self.otherwise)


class MomentField(forms.Field):
    """A typed time. If it is not required, an empty text is ``None``."""

    def __init__(self, *, required: bool = True) -> None:
        super().__init__(required=required, error_messages={"required": WRONG})

    def to_python(self, value: str | None) -> datetime | None:
        if not (text := (value or "").strip()):
            return None
        try:
            return moment_of(text)
        except ValueError:
            raise forms.ValidationError(WRONG) from None
