"""The form that forces a breaker open or closed."""

from datetime import datetime, timedelta
from typing import Any

from django import forms

from controlplane.breakers.overrides import LONGEST, LONGEST_CLOSED
from controlplane.breakers.tickets import LONGEST as TICKET_LONGEST
from controlplane.breakers.tickets import ticket_problem
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
    LASTS = (("5", "5 min"), ("15", "15 min"), ("60", "1 h"), ("240", "4 h"), ("until", "Until\u2026"))
    #: The times that the form offers for a breaker that is forced closed.
    CLOSED_LASTS = tuple(key for key, _ in LASTS if key.isdigit() and int(key) <= CLOSED_MINUTES)

    act = forms.ChoiceField(choices=ACTS, error_messages={"required": "Choose an action."})
    reason = ReasonField()
    lasts = forms.ChoiceField(choices=LASTS, required=False)
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
        mode = held if act == "extend" else act
        return cls.CLOSED_LASTS if mode == OverrideMode.FORCED_CLOSED else tuple(key for key, _ in cls.LASTS)

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
        lasts = data.get("lasts", "")
        if not lasts:
            if "lasts" not in self.errors:
                self.add_error("lasts", "Choose a duration.")
            return None
        if lasts != "until":
            return self.now + timedelta(minutes=int(lasts))
        try:
            expiry = moment_of(data.get("until", ""))
        except ValueError:
            self.add_error("until", WRONG)
            return None
        if expiry <= self.now:
            self.add_error("until", "Choose a time in the future.")
            return None
        if expiry > self.now + LONGEST:
            self.add_error("until", "At most 24 hours from now.")
            return None
        return expiry
