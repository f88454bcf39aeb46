"""The notice after an edit: how many pods have applied it, and Undo."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from django.http import HttpRequest, QueryDict
from django.utils import timezone

from controlplane.accounts.permissions import environment_in
from controlplane.policies.models import Revision
from dashboard.forms import sent_number

#: An address with a saved revision can be a bookmark, and a tab can be closed before its next page. After
#: this, neither shows a notice.
_RECENT = timedelta(minutes=2)


#: Where the session keeps the notice of an edit until the next page shows it.
_KEPT = "saved"
#: A cookie is the session. A larger edit has no Undo.
_LARGEST_UNDO = 1_000


@dataclass(frozen=True)
class Saved:
    """An edit that makes no revision: its notice, and the form that undoes it."""

    text: str
    #: The page of the form.
    at: str = ""
    #: Name -> one value, or several, of the form that saves what was there before. Empty without Undo.
    undo: Mapping[str, str | list[str]] = field(default_factory=dict)

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [
            (name, one)
            for name, value in self.undo.items()
            for one in ([value] if isinstance(value, str) else value)
        ]


def keep_saved(request: HttpRequest, saved: Saved) -> None:
    """Show the notice on the next page."""
    small = len(json.dumps(saved.undo)) <= _LARGEST_UNDO
    kept = asdict(saved if small else Saved(saved.text))
    request.session[_KEPT] = {"made": timezone.now().timestamp(), "saved": kept}


def take_saved(request: HttpRequest) -> Saved | None:
    """The notice of the edit just made, once. A page with errors of a form leaves it."""
    if request.method != "GET" or _KEPT not in request.session:
        return None
    kept = request.session.pop(_KEPT)
    recent = timezone.now().timestamp() - kept["made"] < _RECENT.total_seconds()
    return Saved(**kept["saved"]) if recent else None


def saved_at(address: str, revision: int) -> str:
    """Return the address of a page that reports this revision as just saved."""
    parts = urlsplit(address)
    query = QueryDict(parts.query, mutable=True)
    query["saved"] = str(revision)
    return urlunsplit(parts._replace(query=query.urlencode()))


def just_saved(request: HttpRequest) -> Revision | None:
    """Return the revision that the reader has just saved, if the address names one."""
    number = sent_number(request.GET.get("saved", ""), -1)
    if number < 0:
        return None
    recent = timezone.now() - _RECENT
    rows = Revision.objects.filter(environment=environment_in(request), number=number, at__gte=recent)
    return rows.filter(actor=request.user.get_username(), origin="form").first()


def without_saved(request: HttpRequest) -> str:
    """Return the address of the page without the saved revision."""
    query = request.GET.copy()
    query.pop("saved", None)
    return f"{request.path}?{query.urlencode()}" if query else request.path
