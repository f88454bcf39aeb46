"""The common parts of every page: its reader, the live picture, the address of its socket."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar
from urllib.parse import urlencode

import structlog
from django.core.handlers.asgi import ASGIRequest
from django.db import InterfaceError, OperationalError, connections
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django_htmx.middleware import HtmxDetails

from controlplane.accounts.people import names_of_admins
from controlplane.accounts.permissions import environment_in, reads_of_people
from controlplane.alerts.models import Receiver
from controlplane.alerts.state.stored_alerts import stored_alerts, with_last_evaluation
from controlplane.phrases import listed
from controlplane.policies.models import Dependency, DescriptorFile, Template, Tier
from controlplane.spending.budget_rows import Account, Budget
from controlplane.status.facts import EnvironmentFacts, Facts
from controlplane.status.read_facts import read_environment, read_facts
from dashboard.environments import other_environments
from dashboard.hub import FRESH_S, hub
from dashboard.live.charts import charts_of
from dashboard.live.edited import theirs_of
from dashboard.live.first_steps import read_first_steps
from dashboard.live.frame import Frame, at, undrawn
from dashboard.live.overview import Live, build
from dashboard.live.pages import edits_here, frame_context, page_of
from dashboard.live.topics import FLEET_PAGES, Topic
from dashboard.reader import Reader, reader_of
from dashboard.tables.saved_views import offered_views
from dashboard.tables.table_files import is_file
from dashboard.undo import just_saved, take_saved, without_saved
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

log = structlog.get_logger(__name__)

_Named = Account | Budget | Dependency | DescriptorFile | Receiver | Template | Tier
_Row = TypeVar("_Row", bound=Model)
_ErrorAnswer = Callable[[HttpRequest, Exception], HttpResponse]

THEMES = ("dark", "light")
#: Admins whom a page names to ask for a role.
_MAX_ADMINS = 3


class HtmxHttpRequest(HttpRequest):
    """A request as ``HtmxMiddleware`` leaves it, for type checkers."""

    htmx: HtmxDetails


def text_parameter(request: HttpRequest, name: str, *, most: int = 200) -> str:
    """A text from the address: bounded, and without NUL, which Postgres does not store."""
    return bounded_text(request.GET, name, most=most)


def bounded_text(values: QueryDict, name: str, *, most: int = 200) -> str:
    return values.get(name, "")[:most].replace("\x00", "")


def current_facts(environment: str) -> Facts:
    """From Postgres, so that a page displays the edit just made; otherwise what the hub and gateways know."""
    try:
        return hub.without_postgres.until_recorded(with_last_evaluation(read_facts(environment)))
    except (OperationalError, InterfaceError):
        known = hub.of(environment).facts
        if known is None:
            raise
        return hub.without_postgres.facts(known)


def current_live(environment: str) -> Live:
    facts, known = current_facts(environment), hub.of(environment)
    try:
        stored, steps = stored_alerts(facts.environment), read_first_steps(facts)
        known.first_steps = steps  # the hub reads them less often, and would draw older ones
    except (OperationalError, InterfaceError):
        stored, steps = known.alerts, known.first_steps
    return build(facts, known.history, known.first_seen, stored=stored, observe=False, first_steps=steps)


def recent_live(environment: str) -> Live:
    """The fleet as the hub has just drawn it: built here only if that is too long ago."""
    drawn = hub.of(environment).live
    if drawn is not None and time.time() - drawn.facts.now <= FRESH_S:
        return drawn
    return current_live(environment)


def current_frame(environment: str, here: EnvironmentFacts | None = None) -> Frame:
    """The fleet as the hub drew it last, however long ago, in the environment as it is now.

    It builds no fleet and evaluates no rule. ``here`` spares the reading. Before the first drawing of this
    process, nothing of the fleet is displayed; the socket of the page brings it.
    """
    drawn = hub.of(environment).live
    try:
        here = here or read_environment(environment)
    except (OperationalError, InterfaceError):
        if drawn is None:
            raise
        return replace(drawn.frame, now=time.time())
    return undrawn(here) if drawn is None else at(drawn.frame, here)


def names_of(model: type[_Named], environment: str) -> QuerySet[Any, str]:
    """The names in a list to choose from."""
    return model.objects.filter(environment=environment).order_by("name").values_list("name", flat=True)


def choices_of(model: type[_Named], environment: str, first: str) -> list[tuple[str, str]]:
    """A list to choose from. Its ``first`` line is no choice yet."""
    return [("", first), *((name, name) for name in names_of(model, environment))]


def find_named(rows: QuerySet[_Row], name: str) -> _Row | None:
    """The row that an address names, exactly. Postgres stores no NUL."""
    return None if "\x00" in name else rows.filter(name=name).first()


def owned_by(environment: str, services: Collection[str]) -> frozenset[str]:
    """The dependencies of these services."""
    if not services:
        return frozenset()
    rows = Dependency.objects.filter(environment=environment, owner__in=services)
    return frozenset(rows.values_list("name", flat=True))


def theme_of(request: HttpRequest) -> str:
    theme = request.COOKIES.get("theme", "")
    return theme if theme in THEMES else "dark"


def context_of(
    request: HttpRequest,
    page: str,
    *,
    key: str = "",
    span: str = "1h",
    here: EnvironmentFacts | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """The context of a page and of the fragments that its socket will send.

    Only a page whose content is the fleet gets it, as ``live``. ``here``: what the page has read itself.
    """
    reader = reader_of(request) or Reader(name="", role="")
    environment = environment_in(request)
    topic = Topic(
        page=page,
        role=reader.role,
        key=key,
        range=span,
        environment=environment,
        services=reader.services,
        administers_everywhere=reader.administers_everywhere,
    )
    address = {"page": page} | ({"key": key} if key else {})
    if page == "breaker_history":
        address["range"] = span
    if environment != DEFAULT_ENVIRONMENT:
        address["environment"] = environment
    if page in FLEET_PAGES:
        live = current_live(environment)
        context = page_of(topic, live, hub.of(environment).history).context | charts_of(topic, live)
    else:
        context = frame_context(topic, current_frame(environment, here))
        if page == "edit" and edits_here(topic, context):
            context["theirs"] = theirs_of(key, context["frame"], context["frame"].now)
    return {
        **context,
        "reader": reader,
        "elsewhere": other_environments(request),
        "is_production": environment == DEFAULT_ENVIRONMENT,
        "theme": theme_of(request),
        "views": offered_views(request, stale=context["frame"].stale),
        "saved": just_saved(request) or (None if _unread(request, page) else take_saved(request)),
        "saved_back": without_saved(request),
        "socket": f"/ws/live?{urlencode(address)}",
        **extra,
    }


def _unread(request: HttpRequest, page: str) -> bool:
    """Whether a browser may have asked for this itself, as for /favicon.ico, or keeps it as a file."""
    return page == "missing" or is_file(request)


def show(request: HttpRequest, page: str, template: str, *, status: int = 200, **extra: Any) -> HttpResponse:
    return render(request, f"dashboard/{template}", context_of(request, page, **extra), status=status)


def not_found(request: HttpRequest, heading: str, text: str) -> HttpResponse:
    return show(request, "missing", "refused.html", status=404, heading=heading, text=text)


def _closing(answer: _ErrorAnswer) -> _ErrorAnswer:
    """Close the connections that the answer to an error uses. Under ASGI, Django calls it in a thread of the
    event loop, whose connections nothing else closes.
    """

    @wraps(answer)
    def closed(request: HttpRequest, exception: Exception) -> HttpResponse:
        try:
            return answer(request, exception)
        finally:
            if isinstance(request, ASGIRequest):
                connections.close_all()

    return closed


@_closing
def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer what the role of the person does not permit, in the frame: other pages are still there."""
    why = str(exception) or "Your role does not allow this."
    if request.method != "GET":
        why = f"{why} Nothing was changed."
    try:
        reader = reader_of(request)
        if reader is not None and not getattr(request, "htmx", False):
            has = f"You have the role {reader.role} in {environment_in(request)}."
            text = f"{why} {has} {_who_gives(request)}"
            return show(request, "missing", "refused.html", status=403, heading="Not allowed", text=text)
    except (OperationalError, InterfaceError) as error:
        log.warning("page.frame_not_drawn", error=str(error).splitlines()[0])
    return render(request, "403.html", {"why": why}, status=403)


def form_not_accepted(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer a form whose token is missing or outdated. A person who is logged in keeps the frame.

    ``reason`` is Django's, in words that help no person.
    """
    heading = "Form not accepted"
    text = (
        "The form is outdated, or came from another site. Nothing was changed. Go back, reload the page, and"
        " submit it again."
    )
    try:
        if reader_of(request) is not None and not getattr(request, "htmx", False):
            return show(request, "missing", "refused.html", status=403, heading=heading, text=text)
    except (OperationalError, InterfaceError) as error:
        log.warning("page.frame_not_drawn", error=str(error).splitlines()[0])
    return render(request, "403_csrf.html", {"heading": heading, "text": text}, status=403)


def _who_gives(request: HttpRequest) -> str:
    names = listed(names_of_admins(), _MAX_ADMINS) if reads_of_people(request.user) else ""
    return f"An admin of all environments can give you a higher role{f': {names}' if names else ''}."


@_closing
def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an address that no page has. People who are logged in keep the frame, with links and counts."""
    heading, text = "Page not found", "The address may be outdated or mistyped."
    try:
        if reader_of(request) is not None:
            return not_found(request, heading, text)
    except (OperationalError, InterfaceError) as error:
        log.warning("page.frame_not_drawn", error=str(error).splitlines()[0])
    return render(request, "404.html", {"heading": heading, "text": text}, status=404)
