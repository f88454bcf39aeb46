"""The environments that exist, and where a person can switch to."""

from dataclasses import dataclass
from typing import Any

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from controlplane.accounts.permissions import environment_in, role_of
from controlplane.page_addresses import home_of, split_address
from controlplane.policies.models import Environment
from dashboard.hub import hub, read_environments
from dashboard.tables.saved_views import PLACES
from fuseboard.contract.words import DEFAULT_ENVIRONMENT, is_slug


@dataclass(frozen=True)
class Elsewhere:
    environment: str
    #: The address of the same page there.
    address: str


def is_environment(name: str) -> bool:
    # Production has pages also before it is created: they explain the first step.
    if name == DEFAULT_ENVIRONMENT or name in hub.environments:
        return True
    return is_slug(name) and Environment.objects.filter(pk=name).exists()


def environments_of(user: Any) -> list[str]:
    """Return the environments in which the user has a role, production first."""
    try:
        names = hub.environments or read_environments()
    except (OperationalError, InterfaceError):
        names = (DEFAULT_ENVIRONMENT,)
    return [name for name in names if role_of(user, name)]


def other_environments(request: HttpRequest) -> list[Elsewhere]:
    """Return what the switch in the header offers."""
    here = environment_in(request)
    return [Elsewhere(name, _there(request, name)) for name in environments_of(request.user) if name != here]


def _there(request: HttpRequest, environment: str) -> str:
    match = request.resolver_match
    # A number or an id names a thing of one environment, and a form that was sent belongs to one.
    same = match is not None and all(isinstance(one, str) for one in match.kwargs.values())
    if request.method != "GET" or not same:
        return home_of(environment)
    query = request.GET.copy()
    for name in list(query):
        # The place in a list is of things of this environment; a form that a link filled in is meant for it.
        if name in PLACES or name == "act" or name.startswith("own."):
            del query[name]
    address = home_of(environment) + split_address(request.path)[1].lstrip("/")
    return f"{address}?{query.urlencode()}" if query else address
