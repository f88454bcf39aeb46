"""The notice after an edit: how many pods have applied it, and Undo."""

from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from django.http import HttpRequest, QueryDict
from django.utils import timezone

from controlplane.accounts.permissions import environment_in
from controlplane.policies.models import Revision
from dashboard.forms import sent_number

#: An address with a saved revision can be a bookmark. After this, it shows no notice.
_RECENT = timedelta(minutes=2)


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
