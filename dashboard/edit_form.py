"""The base of every form that makes an edit, and the one place where its errors become a page."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, resolve_url

from controlplane.accounts.permissions import check, environment_in
from controlplane.errors import EditConflict, EditError, InvalidEdit, NameTaken, NotFound
from controlplane.policies.fields import Fields, different
from controlplane.validation import Problems, check_reason
from dashboard.forms import SentNumberField, TextField
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.undo import Saved, keep_saved, saved_at

NOTHING_CHANGED = "Nothing has changed."
#: In the preview beside a form with errors, which its fields show.
SEE_FIELDS = "Nothing was saved. Correct the marked fields."
#: Field -> what is wrong with it.
Errors = Mapping[str, Iterable[Any]]
#: In the context of a page with forms, before one is sent: ``run_edit`` replaces these after a refusal.
NOT_SENT: Mapping[str, Any] = {"act": "", "typed": {}, "errors": {}, "conflict": None}


class EditForm(forms.Form):
    """The values that a person typed for one edit.

    Fields only read text. The edit function checks the values, for pages and API alike, and reports all
    problems at once: ``run_edit`` puts them beside the fields.
    """

    reason: TextField | None = TextField()
    #: Whether the edit is refused without a reason.
    needs_reason: ClassVar[bool] = True
    #: The status when the thing of the form does not exist any more.
    missing_status: ClassVar[int] = 404
    #: The text of the page then. If it is empty, the page names the thing.
    missing: ClassVar[str] = ""
    #: Argument of the edit function -> the field that shows its errors, if it has another name.
    shown_at: ClassVar[Mapping[str, str]] = {}

    def __init__(self, request: HttpRequest, data: Mapping[str, Any] | None = None, /, **known: Any) -> None:
        """``known`` is what the address says, under the names of the arguments of the edit function."""
        super().__init__(request.POST if data is None else data)
        self.request = request
        self.known = known
        self.conflict: EditConflict | None = None
        #: Where the edit leads, if not to the page that ``run_edit`` names.
        self.then = ""

    @property
    def act(self) -> str:
        """The button that was pressed."""
        return str(self.data.get("act", ""))

    def save(self) -> str | int | Saved | HttpResponse:
        """Make the edit. Return the message, the revision, or a page. Raises ``EditError``.

        The page after it shows how many pods have applied a revision, and Undo.
        """
        raise NotImplementedError

    @property
    def common(self) -> dict[str, Any]:
        """The arguments that nearly every edit function has."""
        reason = {"reason": self.cleaned_data["reason"]} if "reason" in self.fields else {}
        by = {"environment": environment_in(self.request), "actor": actor_of(self.request)}
        return by | self.known | reason

    @property
    def given(self) -> dict[str, Any]:
        """Every value, for an edit function whose arguments have the names of the fields."""
        return self.common | self.cleaned_data

    def refuse(self, error: EditError) -> int:
        """Put an error beside its field, and return the status of the page."""
        match error:
            case InvalidEdit():
                self._report({self.shown_at.get(name, name): found for name, found in error.errors.items()})
                self.refuse_reason()
                return 422
            case NameTaken():
                self._report({"name": [str(error)]})
                return 422
            case NotFound():
                self._report({"act": [self.missing or str(error)]})
                return self.missing_status
            case EditConflict():
                self.conflict = error
                return 409
        raise error

    def refuse_reason(self) -> None:
        """Add what is wrong with the reason to a form that has other errors: a person mends all at once."""
        if "reason" in self.cleaned_data and self.needs_reason:
            self._report(with_reason({}, self.cleaned_data["reason"]))

    def _report(self, errors: Mapping[str, list[str]]) -> None:
        """Unlike ``add_error``, also for what no field is named after."""
        self.errors.update({field: self.error_class(texts) for field, texts in errors.items()})


class VersionForm(EditForm):
    """Changes or removes a row. Refused if another person has saved it since the page showed it."""

    version = SentNumberField()

    @property
    def common(self) -> dict[str, Any]:
        return super().common | {"expected_version": self.cleaned_data["version"]}


def with_reason(errors: Mapping[str, list[str]], reason: object) -> dict[str, list[str]]:
    """Errors, and what is wrong with the reason beside them: a person mends all at once."""
    problems = Problems()
    problems.reason(reason)
    return {**errors, **problems.errors}


def unchanged(form: EditForm, before: Fields, after: Fields) -> bool:
    """Whether the edit changes nothing. Then no revision is made, and the next page says so.

    Raises ``InvalidEdit`` if the reason is too short.
    """
    check_reason(form.cleaned_data["reason"])
    if different(before, after):
        return False
    messages.info(form.request, NOTHING_CHANGED)
    return True


class UnknownAct(EditForm):
    needs_reason = False

    def save(self) -> str:
        raise InvalidEdit({"act": ["Choose an action."]})


def chosen_form(request: HttpRequest, acts: Mapping[str, type[EditForm]], /, **known: Any) -> EditForm:
    """The form of the button that was pressed, on a page with several."""
    return acts.get(request.POST.get("act", ""), UnknownAct)(request, **known)


def run_edit(
    form: EditForm, *, page: Callable[..., HttpResponse], then: str = "", needs: str = ""
) -> HttpResponse:
    """Make the edit of a form and redirect to ``then``, or show the ``page`` with what is wrong.

    GET shows the page. ``needs`` is the right that the edit needs, if it is more than the page needs.
    """
    if form.request.method != "POST":
        return page(form.request)
    if needs:
        check(form.request.user, needs, environment_in(form.request), service="")
    status = 422
    if form.is_valid():
        try:
            done = form.save()
        except EditError as error:
            status = form.refuse(error)
        else:
            if isinstance(done, HttpResponse):
                return done
            hub.nudge()
            if isinstance(done, int):
                return redirect(saved_at(resolve_url(form.then or then), done))
            if isinstance(done, Saved):
                keep_saved(form.request, done)
            elif done:
                messages.success(form.request, done)
            return redirect(form.then or then)
    else:
        form.refuse_reason()
    conflict = {"conflict": form.conflict} if form.conflict else {}
    return page(form.request, typed=form.data, errors=form.errors, status=status, **conflict)
