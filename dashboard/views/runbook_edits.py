"""Writing runbooks: a form with a live preview, revisions to compare and restore, the text of the release."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.editing import edits
from controlplane.editing.edits.runbooks import LONGEST_BODY, normal_text
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.models import Dependency, RunbookRevision
from controlplane.policies.runbook_texts import Known, Origin, known_runbook
from controlplane.runbooks.format import ACTIONS, SECTIONS, VALUES, read_runbook
from controlplane.runbooks.shipped import Text
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.runbook_html import Drawing, draw_runbook
from dashboard.runbooks import scene_of
from dashboard.text_difference import TextDifference, difference_of
from dashboard.views.page import bounded_text, context_of, not_found, recent_live, text_parameter

_FIRST_BODY = "\n\n".join(f"## {name}\n" for name in SECTIONS)
_MISSING = ("No such runbook", "The list of runbooks has every one of them.")


@require_http_methods(["GET", "POST"])
@require("edit_runbook")
def new_runbook(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return _save(request, bounded_text(request.POST, "slug").strip(), new=True)
    slug = text_parameter(request, "slug")
    return _form(request, slug, new=True, text=Text(slug, _FIRST_BODY))


@require_http_methods(["GET", "POST"])
@require("edit_runbook")
def edit_runbook(request: HttpRequest, slug: str) -> HttpResponse:
    known = known_runbook(slug)
    if known is None:
        return not_found(request, *_MISSING)
    if request.method == "POST":
        return _save(request, slug)
    return _form(request, slug, text=known.text, version=known.version)


@require_POST
@require("edit_runbook")
def preview_runbook(request: HttpRequest) -> HttpResponse:
    """The typed text as readers will see it, and what has to be corrected; nothing is written."""
    return render(request, "dashboard/runbook_edit.html#preview", _preview(request, _typed(request)))


@require_GET
@require("view")
def runbook_revisions(request: HttpRequest, slug: str) -> HttpResponse:
    known = known_runbook(slug)
    return _revisions(request, known) if known is not None else not_found(request, *_MISSING)


@require_POST
@require("edit_runbook")
def change_runbook(request: HttpRequest, slug: str) -> HttpResponse:
    """Restore a revision, use or keep a text instead of the one of the release, or remove the runbook."""
    try:
        done = _change(request, slug)
    except (InvalidEdit, EditConflict) as refused:
        known = known_runbook(slug)
        if known is None:
            return not_found(request, *_MISSING)
        if isinstance(refused, EditConflict):
            return _revisions(request, known, conflict=refused, status=409)
        return _revisions(request, known, errors=refused.errors, status=422)
    except NotFound as missing:
        return not_found(request, "Not found", str(missing))
    messages.success(request, done)
    hub.nudge()
    return redirect("runbook", slug) if known_runbook(slug) is not None else redirect("runbooks")


def _change(request: HttpRequest, slug: str) -> str:
    common: dict[str, Any] = {
        "runbook": slug,
        "expected_version": whole(request.POST.get("version", ""), "version"),
        "reason": request.POST.get("reason", ""),
        "actor": actor_of(request),
    }
    match request.POST.get("act", ""):
        case "restore":
            number = whole(request.POST.get("number", ""), "number")
            version = edits.restore_runbook(number=number, **common)
            return f"The text of revision {number} is saved as revision {version}."
        case "use":
            edits.use_shipped_runbook(**common)
            return "The runbook has the text of the release, also of later releases."
        case "keep":
            edits.keep_edited_runbook(**common)
            return "The edited text is kept."
        case "remove":
            edits.remove_runbook(**common)
            return f"The runbook {slug} is removed."
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})


def _save(request: HttpRequest, slug: str, *, new: bool = False) -> HttpResponse:
    text = _typed(request)
    common: dict[str, Any] = {"text": text, "new": new}
    try:
        expected = whole(request.POST.get("version", ""), "version")
        if request.POST.get("act") == "preview":
            return _form(request, slug, version=expected, **common)
        if new and known_runbook(slug) is not None:
            raise InvalidEdit(
                {"runbook": ["A runbook has this name. Edit that one, or choose another name."]}
            )
        version = edits.save_runbook(
            runbook=slug,
            title=text.title,
            body=text.body,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            expected_version=expected,
        )
    except InvalidEdit as error:
        based_on = bounded_text(request.POST, "version", most=20)
        return _form(request, slug, version=based_on, errors=error.errors, status=422, **common)
    except EditConflict as conflict:
        return _form(request, slug, version=conflict.current_version, conflict=conflict, status=409, **common)
    except NotFound:
        return _form(request, slug, version=0, errors={"runbook": [_REMOVED]}, status=409, **common)
    hub.nudge()
    messages.success(
        request,
        f"Revision {version} is saved." if version != expected else "Nothing to save: the text is the same.",
    )
    return redirect("runbook", slug)


_REMOVED = "Another person removed this runbook. Save again to create it."


def _typed(request: HttpRequest) -> Text:
    body = request.POST.get("body", "")[: LONGEST_BODY + 1_000].replace("\x00", "")
    return normal_text(bounded_text(request.POST, "title", most=500), body)


def _preview(request: HttpRequest, text: Text) -> dict[str, Any]:
    document = read_runbook(text.body[:LONGEST_BODY])
    scene = scene_of(recent_live(environment_in(request)), None)
    html = draw_runbook(document, Drawing(scene=scene, preview=True))
    return {"html": html, "to_correct": document.to_correct, "title": text.title}


def _form(
    request: HttpRequest,
    slug: str,
    *,
    text: Text,
    new: bool = False,
    version: int | str = 0,
    errors: dict[str, list[str]] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    errors = errors or {}
    theirs = known_runbook(slug) if conflict is not None else None
    context = context_of(
        request,
        "runbooks",
        slug=slug,
        new=new,
        text=text,
        version=version,
        errors=errors,
        unplaced=[one for field, texts in errors.items() if field in ("act", "version") for one in texts],
        conflict=conflict,
        difference=_difference(theirs.text, text) if theirs is not None else None,
        reason=request.POST.get("reason", ""),
        values=sorted(VALUES.items()),
        actions=sorted(ACTIONS),
        sections=SECTIONS,
        **_preview(request, text),
    )
    return render(request, "dashboard/runbook_edit.html", context, status=status)


def _revisions(
    request: HttpRequest,
    known: Known,
    *,
    errors: dict[str, list[str]] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    rows = list(RunbookRevision.objects.filter(runbook=known.slug).defer("body").order_by("-number"))
    asked = text_parameter(request, "revision") or bounded_text(request.POST, "number")
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
        errors=errors or {},
        conflict=conflict,
        reason=request.POST.get("reason", ""),
    )
    return render(request, "dashboard/runbook_revisions.html", context, status=status)


def _text(row: RunbookRevision) -> Text:
    return Text(row.title, row.body)


def _difference(before: Text, after: Text) -> TextDifference:
    return difference_of(f"# {before.title}\n\n{before.body}", f"# {after.title}\n\n{after.body}")
