"""The rules for descriptors of Envoy: the domains, the rules of one in words, and a descriptor to try."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.fleet.descriptor_figures import DomainFigures, answering_pods, asked_lately
from controlplane.policies.descriptors import read_text, rules_in
from controlplane.policies.models import Change, DescriptorFile
from controlplane.status.descriptor_limits import DescriptorLimits, descriptor_limits
from dashboard.edit_form import NOT_SENT, EditForm, VersionForm, chosen_form, run_edit
from dashboard.forms import TextField, lines_of
from dashboard.live.breakers import Breaker
from dashboard.views.page import find_named, not_found, recent_live, show
from dashboard.words.descriptor_lines import rule_lines
from fuseboard.contract.descriptor_tallies import MAX_DOMAIN, shortened
from fuseboard.contract.descriptor_words import HEADERS, decision_text, path_text
from fuseboard.contract.descriptors import DescriptorRules, Entry, Headers, Match

#: A request has at most as many descriptors as are decided together.
MAX_DESCRIPTORS = 50
#: Characters of the descriptors that are tried.
_MAX_TYPED = 20_000
_MISSING = ("No such domain", "There are no rules for a domain with this name.")


class RemoveForm(VersionForm):
    def save(self) -> int:
        self.then = reverse("envoy")
        return edits.remove_descriptors(**self.common)


class DescriptorsField(TextField):
    """One descriptor per line, each with entries like ``tenant=acme``."""

    def clean(self, value: str | None) -> list[list[Entry]]:
        lines = lines_of(super().clean(value))
        if not lines:
            raise ValidationError("Enter a descriptor, such as tenant=acme.")
        if len(lines) > MAX_DESCRIPTORS:
            raise ValidationError(f"A request has at most {MAX_DESCRIPTORS} descriptors.")
        return [_entries(number, line) for number, line in enumerate(lines, 1)]


class TryForm(EditForm):
    """Shows the page again, with what decides the descriptors. It spends nothing."""

    reason = None
    descriptors = DescriptorsField(_MAX_TYPED)

    def save(self) -> HttpResponse:
        row: DescriptorFile = self.known["row"]
        tried = _try(environment_in(self.request), row, self.cleaned_data["descriptors"])
        return _page(self.request, row=row, typed=self.data, tried=tried)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A descriptor that a person tries."""

    text: str
    rule: str
    decision: str
    left: DescriptorLimits
    #: The breaker of the dependency that a call goes to, if it is known.
    breaker: Breaker | None


@require_GET
@require_role("viewer")
def envoy(request: HttpRequest) -> HttpResponse:
    environment = environment_in(request)
    rows = list(DescriptorFile.objects.filter(environment=environment).order_by("name"))
    last, asked = _last_changes(environment), asked_lately(environment, time.time())
    names = {shortened(row.name, MAX_DOMAIN) for row in rows}
    return show(
        request,
        "envoy",
        "envoy.html",
        rows=[_line(row, asked.of(row.name), last.get(row.name)) for row in rows],
        since=asked.since,
        pods=answering_pods(environment, asked),
        more_pods=asked.pods_total - len(asked.pods),
        unknown=[
            (found.domain, one)
            for found in asked.domains
            if found.domain not in names
            for one in found.unmatched
        ],
    )


def _line(row: DescriptorFile, figures: DomainFigures, last: Change | None) -> dict[str, Any]:
    by_rule = figures.rules.values()
    return {
        "name": row.name,
        "rules": rules_in(row.file),
        "asked": sum(rule.asked for rule in by_rule) + figures.unmatched_total,
        "refused": sum(rule.refused for rule in by_rule),
        "unmatched": figures.unmatched_total,
        "last": last,
    }


@never_cache
@require_http_methods(["GET", "POST"])
@require_role("viewer")
def envoy_domain(request: HttpRequest, name: str) -> HttpResponseBase:
    """One domain: its rules, a form to try descriptors, and one to remove it.

    What is tried is in the body of a POST, because addresses are logged.
    """
    row = _find(request, name)
    if row is None:
        return not_found(request, *_MISSING)
    if request.method != "POST":
        return _page(request, row=row)
    if request.POST.get("act") == "try":
        return run_edit(TryForm(request, row=row), page=partial(_page, row=row))
    return require("edit_quota")(_edit)(request, row)


@require_GET
@require_role("viewer")
def envoy_file(request: HttpRequest, name: str) -> HttpResponse:
    """The text as it was saved, with its comments."""
    row = _find(request, name)
    if row is None:
        return not_found(request, *_MISSING)
    answer = HttpResponse(row.file, content_type="application/yaml; charset=utf-8")
    saved_as = quote(f"{row.name.replace('/', '-')}.yaml")
    answer["Content-Disposition"] = f"attachment; filename*=UTF-8''{saved_as}"
    answer["Cache-Control"] = "no-store"
    return answer


def _entries(number: int, line: str) -> list[Entry]:
    try:
        words = shlex.split(line)
    except ValueError:
        raise ValidationError(f"Line {number}: close the quotation mark.") from None
    found = []
    for word in words:
        key, sign, value = word.partition("=")
        if not key or not sign:
            raise ValidationError(
                f"Line {number}: an entry is a key and a value, such as tenant=acme, not {word!r:.60}."
            )
        found.append((key, value))
    return found


def _try(environment: str, row: DescriptorFile, descriptors: list[list[Entry]]) -> list[Tried]:
    domain = read_text(row.file).domain
    matches = DescriptorRules([domain] if domain is not None else []).match(row.name, descriptors)
    breakers = {breaker.name: breaker for breaker in recent_live(environment).breakers}
    return [
        _tried(environment, row.name, descriptor, match, breakers)
        for descriptor, match in zip(descriptors, matches, strict=True)
    ]


def _tried(
    environment: str, domain: str, entries: Sequence[Entry], match: Match, breakers: Mapping[str, Breaker]
) -> Tried:
    rule = match.rule
    return Tried(
        text=" ".join(f"{key}={value}" for key, value in entries),
        rule=path_text(match.path),
        decision=decision_text(match),
        left=descriptor_limits(environment, domain, match),
        breaker=breakers.get(rule.dependency) if rule is not None and rule.dependency else None,
    )


def _edit(request: HttpRequest, row: DescriptorFile) -> HttpResponse:
    form = chosen_form(request, {"remove": RemoveForm}, domain=row.name)
    return run_edit(form, page=partial(_page, row=row, act=form.act))


def _page(request: HttpRequest, *, row: DescriptorFile, status: int = 200, **sent: Any) -> HttpResponse:
    file, asked = read_text(row.file), asked_lately(row.environment_id, time.time())
    figures = asked.of(row.name)
    return show(
        request,
        "envoy",
        "envoy_domain.html",
        status=status,
        row=row,
        rules=rule_lines(file, figures.rules),
        headers=HEADERS[file.domain.headers]
        if file.domain is not None and file.domain.headers is not Headers.OFF
        else "",
        since=asked.since,
        unmatched=figures.unmatched,
        unmatched_total=figures.unmatched_total,
        notes=file.notes,
        last=_last_changes(row.environment_id).get(row.name),
        **{**NOT_SENT, **sent},
    )


def _find(request: HttpRequest, name: str) -> DescriptorFile | None:
    return find_named(DescriptorFile.objects.filter(environment=environment_in(request)), name)


def _last_changes(environment: str) -> dict[str, Change]:
    """Domain -> its last change. A change that is older than the history is absent."""
    rows = Change.objects.filter(revision__environment=environment, kind="descriptors")
    newest = rows.order_by("name", "-revision__number").distinct("name").select_related("revision")
    return {change.name: change for change in newest.defer("before", "after")}
