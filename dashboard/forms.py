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
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def whole(text: str, field: str, bounds: tuple[int, int] | None = None) -> int:
    """A number of any size, which the edit function compares with what it allows.

    Raises ``InvalidEdit`` for what is none. ``bounds`` is what it may be: the message names them.
    """
    if not _WHOLE.fullmatch(text.strip()):
        raise InvalidEdit({field: [whole_words(*bounds) if bounds else NOT_WHOLE]})
    return int(text)


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


def too_long(most: int) -> str:
    return f"Use at most {most:,} characters."


class WholeNumberField(forms.IntegerField):
    """A whole number in a range, which every refusal names."""

    def __init__(self, least: int, most: int, *, unit: str = "", **options: Any) -> None:
        said = whole_words(least, most, unit)
        errors = dict.fromkeys(("required", "invalid", "min_value", "max_value"), said)
        super().__init__(min_value=least, max_value=most, error_messages=errors, **options)


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


class TextsField(forms.Field):
    """Every value that has this name."""

    widget = forms.MultipleHiddenInput

    def __init__(self) -> None:
        super().__init__(required=False)

    def to_python(self, value: Any) -> tuple[str, ...]:
        return tuple(value)


class WholeField(forms.Field):
    """A typed whole number of any size. If it is not required, an empty text is ``empty``."""

    def __init__(self, *, required: bool = True, empty: int | None = None) -> None:
        super().__init__(required=required, error_messages={"required": NOT_WHOLE})
        self.empty = empty

    def to_python(self, value: str | None) -> int | None:
        if not (text := (value or "").strip()):
            return self.empty
        if not _WHOLE.fullmatch(text):
            raise forms.ValidationError(NOT_WHOLE)
        return int(text)


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
