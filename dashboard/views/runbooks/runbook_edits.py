"""Writing runbooks: a form with a live preview, revisions to compare and restore, the text of the release."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.editing import edits
from controlplane.editing.edits.runbooks import LONGEST_BODY, normal_text
from controlplane.errors import EditConflict, EditError, InvalidEdit, NotFound
from controlplane.policies.models import Dependency, RunbookRevision
from controlplane.policies.runbook_texts import Origin, known_runbook
from controlplane.runbooks.format import ACTIONS, SECTIONS, VALUES, read_runbook
from controlplane.runbooks.shipped import Text
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import TextField, WholeField, whole
from dashboard.reader import actor_of
from dashboard.undo import Saved
from dashboard.views.page import bounded_text, context_of, not_found, recent_live, text_parameter
from dashboard.views.runbooks.runbook_html import Drawing, draw_runbook
from dashboard.views.runbooks.runbook_texts import scene_of
from dashboard.views.runbooks.text_difference import TextDifference, difference_of

_FIRST_BODY = "\n\n".join(f"## {name}\n" for name in SECTIONS)
_MISSING = ("No such runbook", "The list of runbooks has every one of them.")


class SaveForm(EditForm):
    """The name of a new runbook is typed."""

    slug = TextField(200)
    version = WholeField()

    def save(self) -> str | Saved | HttpResponse:
        slug, new = self.known.get("slug") or self.cleaned_data["slug"], "slug" not in self.known
        if self.act == "preview":
            return _form(self.request, slug, new=new, typed=self.data)
        if new and known_runbook(slug) is not None:
            raise InvalidEdit(
                {"runbook": ["A runbook has this name. Edit that one, or choose another name."]}
            )
        text, expected = _typed(self.data), self.cleaned_data["version"]
        version = edits.save_runbook(
            runbook=slug,
            title=text.title,
            body=text.body,
            reason=self.cleaned_data["reason"],
            actor=actor_of(self.request),
            expected_version=expected,
        )
        self.then = reverse("runbook", args=[slug])
        if version == expected:
            return "Nothing to save: the text is the same."
        undo = {"version": str(version), "number": str(expected), "reason": f"Undo of revision {version}"}
        # The first edit of a built-in text has no revision before it.
        act = "restore" if expected else "remove" if new else "use"
        at = reverse("change_runbook", args=[slug])
        return Saved(f"Revision {version} is saved.", at=at, undo={"act": act, **undo})

    def refuse(self, error: EditError) -> int:
        if isinstance(error, NotFound):
            super().refuse(InvalidEdit({"runbook": [_REMOVED]}))
            return 409
        return super().refuse(error)


class ChangeForm(EditForm):
    """Restore a revision, use or keep a text instead of the one of the release, or remove the runbook."""

    version = WholeField()
    number = TextField(20)

    def save(self) -> str:
        slug = self.known["runbook"]
        done = self._change(
            runbook=slug,
            expected_version=self.cleaned_data["version"],
            reason=self.cleaned_data["reason"],
            actor=actor_of(self.request),
        )
        self.then = reverse("runbook", args=[slug]) if known_runbook(slug) else reverse("runbooks")
        return done

    def _change(self, **common: Any) -> str:
        match self.act:
            case "restore":
                number = whole(self.cleaned_data["number"], "number")
                version = edits.restore_runbook(number=number, **common)
                return f"The text of revision {number} is saved as revision {version}."
            case "use":
                edits.use_shipped_runbook(**common)
                return "The runbook has its built-in text, also that of later releases."
            case "keep":
                edits.keep_edited_runbook(**common)
                return "The edited text is kept."
            case "remove":
                edits.remove_runbook(**common)
                return f"The runbook {common['runbook']} is removed."
        raise InvalidEdit({"act": ["Choose an action."]})


@require_http_methods(["GET", "POST"])
@require("edit_runbook")
def new_runbook(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        form = SaveForm(request)
        slug = bounded_text(request.POST, "slug").strip()
        return run_edit(form, page=partial(_form, slug=slug, new=True))
    slug = text_parameter(request, "slug")
    return _form(request, slug, new=True, text=Text(slug, _FIRST_BODY))


@require_http_methods(["GET", "POST"])
@require("edit_runbook")
def edit_runbook(request: HttpRequest, slug: str) -> HttpResponse:
    known = known_runbook(slug)
    if known is None:
        return not_found(request, *_MISSING)
    if request.method == "POST":
        return run_edit(SaveForm(request, slug=slug), page=partial(_form, slug=slug))
    return _form(request, slug, text=known.text, typed={"version": str(known.version)})


@require_POST
@require("edit_runbook")
def preview_runbook(request: HttpRequest) -> HttpResponse:
    """The typed text as readers will see it, and what has to be corrected; nothing is written."""
    return render(request, "dashboard/runbook_edit.html#preview", _preview(request, _typed(request.POST)))


@require_GET
@require("view")
def runbook_revisions(request: HttpRequest, slug: str) -> HttpResponse:
    return _revisions(request, slug)


@require_POST
@require("edit_runbook")
def change_runbook(request: HttpRequest, slug: str) -> HttpResponse:
    return run_edit(ChangeForm(request, runbook=slug), page=partial(_revisions, slug=slug))


_REMOVED = "Another person removed this runbook. Save again to create it."


def _typed(data: Any) -> Text:
    body = data.get("body", "")[: LONGEST_BODY + 1_000].replace("\x00", "")
    return normal_text(bounded_text(data, "title", most=500), body)


def _preview(request: HttpRequest, text: Text) -> dict[str, Any]:
    document = read_runbook(text.body[:LONGEST_BODY])
    scene = scene_of(recent_live(environment_in(request)), None)
    html = draw_runbook(document, Drawing(scene=scene, preview=True))
    return {"html": html, "to_correct": document.to_correct, "title": text.title}


def _form(
    request: HttpRequest,
    slug: str,
    *,
    text: Text | None = None,
    typed: Mapping[str, str] | None = None,
    new: bool = False,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    typed, errors = typed or {}, errors or {}
    text = text or _typed(typed)
    theirs = known_runbook(slug) if conflict is not None else None
    context = context_of(
        request,
        "runbooks",
        slug=slug,
        new=new,
        text=text,
        version=typed.get("version", "0")[:20] if conflict is None else conflict.current_version,
        errors=errors,
        unplaced=[one for field, texts in errors.items() if field in ("act", "version") for one in texts],
        conflict=conflict,
        difference=_difference(theirs.text, text) if theirs is not None else None,
        reason=typed.get("reason", ""),
        values=sorted(VALUES.items()),
        actions=sorted(ACTIONS),
        sections=SECTIONS,
        **_preview(request, text),
    )
    return render(request, "dashboard/runbook_edit.html", context, status=status)


def _revisions(
    request: HttpRequest,
    slug: str,
    *,
    typed: Mapping[str, str] | None = None,
    status: int = 200,
    **extra: Any,
) -> HttpResponse:
    known, typed = known_runbook(slug), typed or {}
    if known is None:
        return not_found(request, *_MISSING)
    rows = list(RunbookRevision.objects.filter(runbook=known.slug).defer("body").order_by("-number"))
    asked = text_parameter(request, "revision") or typed.get("number", "")
    chosen = None
    if asked.isdecimal() and len(asked) < 10:
        chosen = RunbookRevision.objects.filter(runbook=known.slug, number=int(asked)).first()
    before = None
    if chosen is not None:
        earlier = RunbookRevision.objects.filter(runbook=known.slug, number__lt=chosen.number)
        before = earlier.order_by("-number").first()
    context = context_of(
        request,
        "runbooks",
        known=known,
        rows=rows,
        chosen=chosen,
        before=before,
        since_before=_difference(_text(before), _text(chosen)) if chosen and before else None,
        since_now=_difference(known.text, _text(chosen))
        if chosen and chosen.number != known.version
        else None,
        of_release=_difference(known.text, known.default) if known.default else None,
        by_release=_difference(known.compared, known.new_default)
        if known.compared and known.new_default
        else None,
        used_by=list(
            Dependency.objects.filter(runbook=known.slug).values_list("environment_id", "name")[:20]
        ),
        own=known.origin is Origin.OWN,
        edits=may(request.user, "edit_runbook"),
        act=typed.get("act", ""),
        reason=typed.get("reason", ""),
        **extra,
    )
    return render(request, "dashboard/runbook_revisions.html", context, status=status)


def _text(row: RunbookRevision) -> Text:
    return Text(row.title, row.body)


def _difference(before: Text, after: Text) -> TextDifference:
    return difference_of(f"# {before.title}\n\n{before.body}", f"# {after.title}\n\n{after.body}")
