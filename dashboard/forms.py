"""What people type. The edit functions check everything again; a form only says it sooner and by field."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django import forms

from controlplane.errors import InvalidEdit
from controlplane.validation import LONGEST_REASON, MISSING_REASON, SHORTEST_REASON, Problems
from fuseboard.contract.limit_fields import MAX_WINDOW_S
from fuseboard.contract.words import MAX_LIMIT

#: Longest time a breaker may be held closed.
CLOSED_MINUTES = 15
LONGEST = timedelta(hours=24)


def whole(text: str, field: str) -> int:
    """A number of any size, which the edit function compares with what it allows.

    Raises ``InvalidEdit`` for what is none.
    """
    text = text.strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise InvalidEdit({field: ["Enter a whole number."]})
    return int(text)


class WholeField(forms.IntegerField):
    """A whole number in a range, which every refusal names."""

    def __init__(self, least: int, most: int, *, unit: str = "", **options: Any) -> None:
        said = f"Enter a whole number{unit} from {least:,} to {most:,}."
        errors = dict.fromkeys(("invalid", "min_value", "max_value"), said)
        super().__init__(min_value=least, max_value=most, error_messages=errors, **options)


class ReasonField(forms.CharField):
    def __init__(self) -> None:
        super().__init__(
            min_length=SHORTEST_REASON,
            max_length=LONGEST_REASON,
            error_messages={"required": MISSING_REASON, "min_length": MISSING_REASON},
        )


class OverrideForm(forms.Form):
    """Hold a breaker open or closed, prolong or end the hold, or reset it."""

    ACTS = (
        ("forced_open", "Open"),
        ("forced_closed", "Closed"),
        ("extend", "Extend"),
        ("automatic", "Automatic"),
        ("reset", "Reset"),
    )
    LASTS = (("5", "5 min"), ("15", "15 min"), ("60", "1 h"), ("240", "4 h"), ("until", "Until\u2026"))

    act = forms.ChoiceField(choices=ACTS, error_messages={"required": "Choose what to do."})
    reason = ReasonField()
    lasts = forms.ChoiceField(choices=LASTS, required=False)
    until = forms.CharField(required=False, max_length=40)
    confirm = forms.CharField(required=False, max_length=64)
    #: The override the page showed: its revision, or 0 for none.
    seen = forms.IntegerField(required=False, min_value=0)

    def __init__(self, *args: Any, dependency: str, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dependency = dependency
        self.now = now

    @property
    def holds(self) -> bool:
        return self.cleaned_data.get("act") in ("forced_open", "forced_closed", "extend")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not self.holds:
            return data
        data["expires_at"] = self._expiry(data)
        if data["act"] == "forced_closed":
            if data.get("confirm", "").strip() != self.dependency:
                self.add_error("confirm", f"Type {self.dependency} exactly: holding it closed adds load.")
            expiry = data["expires_at"]
            if expiry is not None and expiry > self.now + timedelta(minutes=CLOSED_MINUTES, seconds=1):
                self.add_error("lasts", f"Held closed, at most {CLOSED_MINUTES} minutes.")
        return data

    def _expiry(self, data: dict[str, Any]) -> datetime | None:
        lasts = data.get("lasts", "")
        if not lasts:
            if "lasts" not in self.errors:
                self.add_error("lasts", "Choose for how long.")
            return None
        if lasts != "until":
            return self.now + timedelta(minutes=int(lasts))
        try:
            expiry = datetime.fromisoformat(data.get("until", "")).replace(tzinfo=UTC)
        except ValueError:
            self.add_error("until", "Enter a date and a time, in UTC.")
            return None
        if expiry <= self.now:
            self.add_error("until", "Choose a time in the future.")
            return None
        if expiry > self.now + LONGEST:
            self.add_error("until", "At most 24 hours from now.")
            return None
        return expiry


class QuotaForm(forms.Form):
    """One quota of one tenant."""

    quota = forms.CharField(max_length=64)
    limit = WholeField(0, MAX_LIMIT)
    window_s = WholeField(1, MAX_WINDOW_S, unit=" of seconds")
    burst = WholeField(1, MAX_LIMIT, required=False)
    #: Of a reserved quota, what servers spend without Redis; nothing typed is the fleet's usual.
    reserved_percent = WholeField(0, 100, required=False)
    #: Whether it only counts; nothing leaves it as it is.
    shadow = forms.ChoiceField(choices=(("", ""), ("yes", "yes"), ("no", "no")), required=False)
    #: When it begins and when it ends, in UTC; empty for at once and never.
    starts = forms.CharField(required=False, max_length=40)
    ends = forms.CharField(required=False, max_length=40)
    reason = ReasonField()
    version = forms.IntegerField(min_value=0)

    def clean_reserved_percent(self) -> int | None:
        """-1 for the fleet's usual; ``None`` when the form has no such field, and leaves it as it is."""
        if "reserved_percent" not in self.data:
            return None
        typed: int | None = self.cleaned_data["reserved_percent"]
        return -1 if typed is None else typed

    def clean_starts(self) -> datetime | None:
        return self._moment("starts")

    def clean_ends(self) -> datetime | None:
        return self._moment("ends")

    def _moment(self, name: str) -> datetime | None:
        text = self.cleaned_data[name].strip()
        if not text:
            return None
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            raise forms.ValidationError("Enter a date and a time, in UTC.") from None


class TemplateForm(forms.Form):
    """The values of a template that people change by hand; files and the API have them all."""

    ALGORITHMS = (
        ("token_bucket", "Token bucket"),
        ("sliding_window", "Sliding window, strict"),
        ("fixed_window", "Calendar"),
        ("concurrency", "At once"),
    )
    PERIODS = (("", "None"), ("hour", "Hour"), ("day", "Day"), ("week", "Week"), ("month", "Month"))
    WITHOUT_REDIS = (
        ("fail_open", "Allow"),
        ("fail_closed", "Refuse"),
        ("local_share", "Local share"),
        ("reserved", "Reserved part"),
    )
    OVER = (("no", "Refuse"), ("yes", "Only count (shadow)"))

    name = forms.CharField(max_length=64, required=False)
    title = forms.CharField(max_length=200, required=False)
    limit = WholeField(0, MAX_LIMIT)
    window_s = WholeField(1, MAX_WINDOW_S, unit=" of seconds")
    burst = WholeField(1, MAX_LIMIT, required=False)
    algorithm = forms.ChoiceField(choices=ALGORITHMS, initial="token_bucket")
    period = forms.ChoiceField(choices=PERIODS, required=False)
    failure_policy = forms.ChoiceField(choices=WITHOUT_REDIS, initial="local_share")
    shadow = forms.ChoiceField(choices=OVER, initial="no")
    warn_percent = WholeField(0, 100, required=False)
    reason = ReasonField()

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        problems = Problems()
        if name:
            problems.slug("name", name)
        if problems.errors:
            raise forms.ValidationError(problems.errors["name"])
        return name

    @classmethod
    def initial_of(cls, row: Any) -> dict[str, Any]:
        found = {name: getattr(row, name) for name in cls.base_fields if hasattr(row, name)}
        return found | {"shadow": "yes" if row.shadow else "no", "warn_percent": row.warn_percent or None}

    def values(self) -> dict[str, Any]:
        """As ``set_template`` takes them."""
        data = self.cleaned_data
        return {
            "title": data["title"],
            "limit": data["limit"],
            "window_s": data["window_s"],
            "burst": data["burst"] or 1,
            "algorithm": data["algorithm"],
            "period": data["period"],
            "failure_policy": data["failure_policy"],
            "shadow": data["shadow"] == "yes",
            "warn_percent": data["warn_percent"] or 0,
        }
