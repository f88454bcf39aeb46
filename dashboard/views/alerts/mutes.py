"""Mutes of alerts and maintenance windows: what applies, what a new one would mute, and how one ends."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.models import Mute
from controlplane.alerts.people.mute_edits import (
    LONGEST,
    MuteValues,
    add_mute,
    check_mute,
    end_mute,
    missing_pod,
    preview_mute,
)
from controlplane.alerts.people.rule_words import RULE_CHOICES, sentence_of
from controlplane.alerts.state.mutes import active_until, not_ended, period_of
from controlplane.errors import InvalidEdit
from controlplane.policies.models import Dependency
from dashboard.edit_form import EditForm, Errors, chosen_form, run_edit
from dashboard.forms import MomentField, TextField, WholeField
from dashboard.undo import Saved
from dashboard.views.page import context_of, names_of

ENDED_ALREADY = "This mute has already ended."
_LONGEST_MIN = int(LONGEST.total_seconds()) // 60
_MATCHES = ("rule", "dependency", "pod")
#: Chosen on purpose: the form begins without a choice.
_ANY = "any"
_REPEATS = (("", "Once"), ("weekly", "Every week, until a person ends it"))


class MuteForm(EditForm):
    """The mute that the preview shows and the button *Start* starts."""

    rule = TextField(64)
    dependency = TextField(200)
    pod = TextField(65)
    starts_at = MomentField(required=False)
    minutes = WholeField(required=False, empty=60, bounds=(1, _LONGEST_MIN))
    repeats = TextField()

    @property
    def values(self) -> MuteValues:
        typed = {name: self.cleaned_data[name] for name in (*_MATCHES, "starts_at", "minutes")}
        typed["rule"] = _rule_of(typed["rule"])
        return MuteValues(**typed, weekly=self.cleaned_data["repeats"] == "weekly")

    def clean(self) -> dict[str, Any]:
        """With a number or a time that is none, still check the other values."""
        found = super().clean() or self.cleaned_data
        chooses = self.request.method == "POST" and "rule" in found and not found["rule"]
        if chooses and (found.get("dependency") or found.get("pod")):
            self.add_error("rule", "Choose a rule. Any rule mutes every alert of the dependency or the pod.")
        if self.errors:
            kept = {name: found[name] for name in (*_MATCHES, "starts_at", "minutes") if name in found}
            if "rule" in kept:
                kept["rule"] = _rule_of(kept["rule"])
            try:
                weekly = found.get("repeats") == "weekly"
                check_mute(environment=environment_in(self.request), values=MuteValues(**kept, weekly=weekly))
            except InvalidEdit as error:
                self._report({name: texts for name, texts in error.errors.items() if name in kept})
        return found

    def save(self) -> Saved:
        row = add_mute(values=self.values, **self.common)
        undo = {"act": "end", "mute": str(row.pk), "reason": "Undo of a mute"}
        return Saved(_added_text(row), at=reverse("mutes"), undo=undo)


class PreviewForm(EditForm):
    def save(self) -> HttpResponse:
        return _page(self.request, typed=self.data)


class EndMuteForm(EditForm):
    """Its note has no Undo: alerts that still fire are sent at once."""

    missing = ENDED_ALREADY

    mute = WholeField()

    def save(self) -> Saved:
        number, only_period = self.cleaned_data["mute"], self.act == "end_period"
        return Saved(ended_text(end_mute(number=number, only_period=only_period, **self.common)))


_ACTS = {"preview": PreviewForm, "add": MuteForm, "end": EndMuteForm, "end_period": EndMuteForm}


@require_http_methods(["GET", "POST"])
@require("view")
def mutes(request: HttpRequest) -> HttpResponse:
    return run_edit(chosen_form(request, _ACTS), page=_page, then="mutes", needs="mute_alerts")


def ended_text(row: Mute) -> str:
    """The message after a mute, or one period of it, was ended."""
    rest = "Alerts that still fire are sent."
    what = _matches_words(row)
    if row.ended_at is None:
        starts, _ = period_of(row, timezone.now())
        return f"This period ended: {what}. {rest} The next begins on {_short(starts)} UTC."
    if row.weekly:
        return f"Weekly mute ended: {what}. It is not repeated. {rest}"
    return f"Mute ended: {what}. {rest}"


def _added_text(row: Mute) -> str:
    planned = row.starts_at > row.created_at
    begins = f"from {_short(row.starts_at)} " if planned else ""
    weekly = ", and every week until a person ends it" if row.weekly else ""
    word = "Planned" if planned else "Muted"
    caution = missing_pod(row.environment, row.pod)
    text = f"{word}: {_matches_words(row)}, {begins}until {_short(row.ends_at)} UTC{weekly}."
    return f"{text} {caution}" if caution else text


def _matches_words(row: Mute) -> str:
    """The alerts that it matches: the sentence of the rule, the dependency and the pod."""
    return ", ".join(filter(None, (row.rule and sentence_of(row.rule), _subjects(row))))


def _subjects(row: Mute) -> str:
    parts = (("dependency", row.dependency), ("pod", row.pod))
    return ", ".join(f"{kind} {name}" for kind, name in parts if name)


def _rule_of(typed: str) -> str:
    """The rule that a mute matches; empty for any."""
    return "" if typed == _ANY else typed


def _short(at: datetime) -> str:
    return f"{at:%-d %b %H:%M}"


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, Any] | None = None,
    errors: Errors | None = None,
    status: int = 200,
) -> HttpResponse:
    typed, preview = request.GET if typed is None else typed, None
    asked = errors is None and any(typed.get(name) for name in _MATCHES)
    if asked and may(request.user, "mute_alerts", environment_in(request)):
        form = MuteForm(request, typed)
        try:
            if form.is_valid():
                preview = preview_mute(environment=environment_in(request), values=form.values)
        except InvalidEdit as error:
            form.refuse(error)
        if form.errors:
            errors, status = form.errors, 422
    # A link that names a dependency or a pod alone is about any rule.
    rule = typed.get("rule") or (_ANY if request.method == "GET" and asked else "")
    now = timezone.now()
    context = context_of(request, "mutes", errors=errors, typed=typed)
    context |= {
        "rows": [_row(row) for row in not_ended(environment_in(request), now)],
        "preview": preview,
        "rules": _with_typed((("", "Choose a rule"), (_ANY, "Any rule"), *RULE_CHOICES), rule),
        "rule": rule,
        "dependencies": _with_typed(
            (("", "Any dependency"), *names_of(Dependency, environment_in(request))),
            typed.get("dependency", ""),
        ),
        "repeats": _REPEATS,
    }
    return render(request, "dashboard/mutes.html", context, status=status)


def _with_typed(choices: tuple[Any, ...], typed: str) -> tuple[Any, ...]:
    """Keep what is no choice: in its place, the form would mute more than its preview shows."""
    known = {choice for choice in choices if isinstance(choice, str)}
    for value, word in (choice for choice in choices if isinstance(choice, tuple)):
        known |= {key for key, _ in word} if isinstance(word, tuple) else {value}
    return choices if typed in known else (*choices, typed)


def _row(mute: Mute) -> dict[str, Any]:
    now = timezone.now()
    starts, ends = period_of(mute, now)
    return {
        "mute": mute,
        "matches": _matches_words(mute),
        "sentence": sentence_of(mute.rule) if mute.rule else "Any rule",
        "subjects": _subjects(mute),
        "starts": starts,
        "ends": ends,
        "active": active_until(mute, now) is not None,
    }
