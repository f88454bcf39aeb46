"""The form that forces a breaker open or closed."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django import forms

from controlplane.breakers.overrides import LONGEST, LONGEST_CLOSED
from controlplane.breakers.tickets import LONGEST as TICKET_LONGEST
from controlplane.breakers.tickets import ticket_problem
from controlplane.status.facts import Override
from dashboard.forms import BoundedTextField, ReasonField
from dashboard.words.moments import WRONG, moment_of
from fuseboard.contract.words import OverrideMode

#: How long a breaker can be forced closed.
CLOSED_MINUTES = int(LONGEST_CLOSED.total_seconds()) // 60


class OverrideForm(forms.Form):
    """Force a breaker open or closed, extend or end the override, or reset the breaker."""

    ACTS = (
        ("forced_open", "Force open"),
        ("forced_closed", "Force closed"),
        ("extend", "Extend"),
        ("automatic", "End override"),
        ("reset", "Reset"),
    )
    #: Minutes, then a number of minutes that the operator types, then a date.
    LASTS = (
        ("5", "5 min"),
        ("10", "10 min"),
        ("15", "15 min"),
        ("30", "30 min"),
        ("60", "1 h"),
        ("240", "4 h"),
        ("minutes", "Minutes\u2026"),
        ("until", "Until\u2026"),
    )
    #: The times that the form offers for a breaker that is forced closed.
    CLOSED_LASTS = tuple(
        key for key, _ in LASTS if key == "minutes" or (key.isdigit() and int(key) <= CLOSED_MINUTES)
    )
    #: The choice with which the form begins.
    USUAL_LASTS = "15"

    act = forms.ChoiceField(choices=ACTS, error_messages={"required": "Choose an action."})
    reason = ReasonField()
    lasts = forms.ChoiceField(choices=LASTS, required=False)
    minutes = BoundedTextField(10, required=False)
    until = BoundedTextField(40, required=False)
    ticket = BoundedTextField(TICKET_LONGEST, required=False)
    #: The name of the dependency, typed to force its breaker closed. Checked only then.
    confirm = forms.CharField(required=False)
    #: The override the page showed: its revision, or 0 for none.
    seen = forms.IntegerField(required=False, min_value=0)

    def __init__(self, *args: Any, dependency: str, now: datetime, held: str, **kwargs: Any) -> None:
        """``held`` is the mode of the override in force, empty for none: an extension keeps it."""
        super().__init__(*args, **kwargs)
        self.dependency = dependency
        self.now = now
        self.held = held

    @classmethod
    def lasts_of(cls, act: str, held: str) -> tuple[str, ...]:
        """The durations that the form offers for an action: fewer if the breaker will be forced closed."""
        return (
            cls.CLOSED_LASTS
            if longest_of(act, held) == LONGEST_CLOSED
            else tuple(key for key, _ in cls.LASTS)
        )

    @property
    def offered(self) -> list[tuple[str, str, str]]:
        """Every duration: value, word, and the classes that hide it for actions that do not offer it."""
        return [
            (
                key,
                word,
                " ".join(
                    f"not-{act}"
                    for act in ("forced_closed", "extend")
                    if key not in self.lasts_of(act, self.held)
                ),
            )
            for key, word in self.LASTS
        ]

    @property
    def sets_override(self) -> bool:
        return self.cleaned_data.get("act") in ("forced_open", "forced_closed", "extend")

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if not self.sets_override:
            return data
        data["expires_at"] = self._expiry(data)
        if data["act"] == "forced_closed" and data.get("confirm", "").strip() != self.dependency:
            self.add_error("confirm", f"Type {self.dependency} exactly: forcing it closed adds load.")
        if data.get("lasts") and data["lasts"] not in self.lasts_of(data["act"], self.held):
            self.add_error("lasts", f"Forced closed: at most {CLOSED_MINUTES} minutes.")
        if wrong := ticket_problem(data.get("ticket", "")):
            self.add_error("ticket", wrong)
        return data

    def _expiry(self, data: dict[str, Any]) -> datetime | None:
        if "lasts" in self.errors:
            return None
        end = end_of(data, self.now, longest=longest_of(data["act"], self.held))
        if isinstance(end, datetime):
            return end
        self.add_error(*end)
        return None


def as_long_as(override: Override, offered: Iterable[str]) -> str:
    """The longest offered duration that is not longer than the override, or else the shortest."""
    minutes = round((override.expires_at - override.made_at) / 60)
    choices = [int(one) for one in offered if one.isdigit()]
    return str(max((one for one in choices if one <= minutes), default=min(choices)))


def longest_of(act: str, held: str) -> timedelta:
    """How long the override can last; ``held`` is the mode of the one in force, which an extension keeps."""
    mode = held if act == "extend" else act
    return LONGEST_CLOSED if mode == OverrideMode.FORCED_CLOSED else LONGEST


def end_of(data: Any, now: datetime, *, longest: timedelta = LONGEST) -> datetime | tuple[str, str]:
    """When the override ends by what was typed; or else the field that is wrong, and why."""
    lasts = data.get("lasts", "")
    if lasts == "until":
        return _end_at(data.get("until", ""), now)
    if lasts == "minutes":
        bound = int(longest.total_seconds()) // 60
        typed = data.get("minutes", "").strip()
        # Only ASCII digits: "isdigit" alone accepts others, such as superscripts.
        if not (typed.isascii() and typed.isdigit() and len(typed) <= 4 and 1 <= int(typed) <= bound):
            return "minutes", f"Enter a whole number of minutes from 1 to {bound:,}."
        return now + timedelta(minutes=int(typed))
    if not lasts.isdigit():
        return "lasts", "Choose a duration."
    return now + timedelta(minutes=int(lasts))


def _end_at(typed: str, now: datetime) -> datetime | tuple[str, str]:
    if not typed.strip():
        return "until", "Enter a date and a time in UTC: the end of the override."
    try:
        end = moment_of(typed)
    except ValueError:
        return "until", WRONG
    if end <= now:
        return "until", "This time is in the past. Choose a time in the future."
    if end > now + LONGEST:
        return "until", "Choose a time at most 24 hours from now."
    return end
