"""Runbooks for pages: from Postgres or, while it is unavailable, from their files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from operator import attrgetter

from django.contrib.auth.models import AnonymousUser
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.accounts.permissions import may
from controlplane.fleet.models import RedisNode
from controlplane.policies.runbook_texts import (
    Known,
    Origin,
    known_runbook,
    known_runbooks,
    shipped_runbooks,
)
from controlplane.runbooks.format import Action, Document, read_runbook
from controlplane.runbooks.shipped import split_title
from controlplane.status.read_facts import REDIS_FRESH_FOR
from dashboard.live.breakers import Breaker
from dashboard.live.overview import Live
from dashboard.live.runbook_values import Scene


class Unreadable(Exception):
    """Postgres is unavailable, and the release has no runbook of this name."""


@dataclass(frozen=True)
class Page:
    slug: str
    title: str
    body: str
    origin: Origin = Origin.OWN
    version: int = 0
    #: Whether the release has a text that no editor has compared with this one.
    new_default: bool = False

    @cached_property
    def document(self) -> Document:
        return read_runbook(self.body)

    @property
    def symptom(self) -> str:
        """When to open it, for the list."""
        return _symptom(self.body)


@lru_cache(maxsize=512)
def _symptom(body: str) -> str:
    """The first words under the first heading. The list of runbooks needs them of all, each time."""
    tokens = read_runbook(body).tokens
    paragraph = next(
        (token for before, token in pairwise(tokens) if before.type == "paragraph_open"),
        None,
    )
    children = (paragraph.children or ()) if paragraph is not None else ()
    words = (" " if child.type == "softbreak" else child.content for child in children)
    return " ".join("".join(words).split())


def every_runbook() -> list[Page]:
    """The runbooks that people wrote, and those of the release."""
    try:
        found = known_runbooks()
    except (OperationalError, InterfaceError):
        found = shipped_runbooks()
    return sorted(map(_page, found.values()), key=attrgetter("title"))


def find_runbook(slug: str) -> Page | None:
    """Raises ``Unreadable``."""
    try:
        known = known_runbook(slug)
    except (OperationalError, InterfaceError):
        # Runbooks matter most when a store is down, so the text of the release has to do.
        known = shipped_runbooks().get(slug)
        if known is None:
            raise Unreadable from None
    return _page(known) if known is not None else None


def _page(known: Known) -> Page:
    text = known.text
    # One that was written through the API may begin with its title again.
    inner = split_title(text.body)
    return Page(
        slug=known.slug,
        title=text.title or known.slug,
        body=inner.body if inner.title == text.title else text.body,
        origin=known.origin,
        version=known.version,
        new_default=known.new_default is not None,
    )


def scene_of(live: Live, breaker: Breaker | None) -> Scene:
    """The sources of the values. While Postgres is down, nothing is known about Redis."""
    try:
        fresh = timezone.now() - REDIS_FRESH_FOR
        nodes = list(RedisNode.objects.filter(read_at__gt=fresh).order_by("address"))
    except (OperationalError, InterfaceError):
        nodes = []
    return Scene(live=live, breaker=breaker, nodes=nodes)


def permits(
    user: User | AnonymousUser, environment: str, breaker: Breaker | None
) -> Callable[[Action], bool]:
    """Whether the person may use the form of an action."""
    owner = breaker.dependency.owner if breaker is not None else ""
    return lambda action: may(user, action.right, environment, service=owner if action.of else "")
