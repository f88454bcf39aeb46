"""The editor of the rules of a domain: its file as text or from a computer, and what it changes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing import edits
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.descriptors import read_text, wrong_text
from controlplane.policies.models import Dependency, DescriptorFile
from dashboard.edit_form import EditForm, run_edit, unchanged
from dashboard.forms import SentNumberField, TextField
from dashboard.views.page import context_of, find_named, names_of, not_found
from dashboard.views.runbooks.text_difference import difference_of
from dashboard.words.descriptor_lines import difference_of_rules
from fuseboard.contract.descriptor_file import MAX_FILE, MAX_PROBLEMS

_FIRST_FILE = """\
domain: {name}
descriptors:
  # The value is a tenant: its quotas decide.
  - key: tenant
    means: tenant
"""
#: Lines that the preview lists: all that reading finds wrong. A file can change 1,000 rules.
_SHOWN = MAX_PROBLEMS + 1


class FileTextField(TextField):
    """A text with the line ends of a file, which a browser replaces."""

    def to_python(self, value: str | None) -> str:
        return plain_text(super().to_python(value))


class FileForm(EditForm):
    """Saves the text. With ``load``, a chosen file replaces what is typed, and nothing is saved."""

    file = FileTextField()
    version = SentNumberField()
    #: The domain of the page, for the preview; empty for a new one.
    domain = TextField()

    def save(self) -> str | int | HttpResponse:
        domain = self.known.get("domain", "")
        if self.act == "load":
            loaded = {"file": self._uploaded(), "version": str(self.data.get("version", ""))}
            return _form(self.request, domain, typed=loaded)
        text = self.cleaned_data["file"]
        if self.act == "preview":
            return _form(self.request, domain, typed=self.data)
        version = self.cleaned_data["version"] if domain else 0
        row = _find(self.request, domain)
        domain = domain or _domain_of(text)
        common = self.common | {"domain": domain, "expected_version": version}
        self.then = reverse("envoy_domain", args=[domain])
        if row is not None and unchanged(self, {"file": plain_text(row.file)}, {"file": text}):
            return ""
        return edits.set_descriptors(file=text, **common)

    def refuse_reason(self) -> None:
        # Only the button that saves has a reason.
        if self.act == "save":
            super().refuse_reason()

    def _uploaded(self) -> str:
        file = self.request.FILES.get("upload")
        if not isinstance(file, UploadedFile):
            raise InvalidEdit({"upload": ["Choose a file."]})
        # No file of this many bytes is right, so the rest of it is not read.
        content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise InvalidEdit({"upload": [f"The file is larger than {MAX_FILE // 1024} KiB."]})
        try:
            return plain_text(content.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise InvalidEdit(
                {"upload": ["The file is not UTF-8. Save it as UTF-8, then load it."]}
            ) from None


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def new_envoy_domain(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return run_edit(FileForm(request), page=partial(_form, domain=""))
    return _form(request, "")


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def edit_envoy_domain(request: HttpRequest, name: str) -> HttpResponse:
    row = _find(request, name)
    if row is None:
        return not_found(request, "No such domain", "There are no rules for a domain with this name.")
    if request.method == "POST":
        return run_edit(FileForm(request, domain=row.name), page=partial(_form, domain=row.name))
    return _form(request, row.name)


@require_POST
@require("edit_quota")
def preview_envoy_domain(request: HttpRequest) -> HttpResponse:
    """The rules that the typed text changes, and the problems in it. Nothing is written."""
    form = FileForm(request)
    form.full_clean()
    preview = _preview(request, form.cleaned_data["domain"], form.cleaned_data["file"])
    return render(request, "dashboard/envoy_edit.html#preview", preview)


def plain_text(text: str) -> str:
    """A text with the line ends of a file."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _domain_of(text: str) -> str:
    """The domain that a new text names. Raises ``InvalidEdit`` for a text without one."""
    read = read_text(text)
    if read.domain is None:
        problems = [f"Line {line}: {problem}" if line else problem for line, problem in read.problems]
        raise InvalidEdit({"file": problems})
    return read.domain.domain


def _begun(request: HttpRequest, domain: str) -> dict[str, str]:
    """The values of the form before anything is typed: the saved text, or a first one."""
    row = _find(request, domain)
    if row is not None:
        return {"file": row.file, "version": str(row.version)}
    name = "edge" if _find(request, "edge") is None else "another-domain"
    return {"file": _FIRST_FILE.format(name=name)}


def _form(
    request: HttpRequest,
    domain: str,
    *,
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    errors = dict(errors or {})
    # A form that loads a file sends no text.
    typed = typed if typed and "file" in typed else _begun(request, domain)
    text = plain_text(str(typed.get("file", "")))
    preview = _preview(request, domain, text)
    if preview["problems"] and errors.keys() & {"file", "reason"}:
        # The preview lists them, each with its line.
        errors["file"] = ["Nothing was saved. The preview lists what is wrong."]
    row = _find(request, domain) if conflict is not None else None
    context = context_of(
        request,
        "envoy",
        domain=domain,
        text=text,
        # After a conflict, the next save knowingly replaces the text of the other person.
        version=str(typed.get("version", "0"))[:20] if row is None else row.version,
        errors=errors,
        beside="file,upload,reason",
        conflict=conflict,
        difference=difference_of(row.file, text) if row is not None else None,
        reason=typed.get("reason", ""),
        **preview,
    )
    return render(request, "dashboard/envoy_edit.html", context, status=status)


def _preview(request: HttpRequest, domain: str, text: str) -> dict[str, Any]:
    environment = environment_in(request)
    read = read_text(text)
    name = domain or (read.domain.domain if read.domain is not None else "")
    problems = list(wrong_text(name, text, set(names_of(Dependency, environment))))
    row = _find(request, name)
    if row is not None and not domain:
        problems.append(f"There are rules for the domain {name} already: edit those.")
    found = None
    if read.domain is not None and not problems:
        before = read_text(row.file).domain if row is not None else None
        found = difference_of_rules(before, read.domain)
    return {
        "problems": problems[:_SHOWN],
        "more_problems": max(0, len(problems) - _SHOWN),
        "notes": read.notes[:_SHOWN],
        "found": found,
        "changes": found.changes[:_SHOWN] if found else (),
        "more_changes": max(0, len(found.changes) - _SHOWN) if found else 0,
    }


def _find(request: HttpRequest, name: str) -> DescriptorFile | None:
    return find_named(DescriptorFile.objects.filter(environment=environment_in(request)), name)
