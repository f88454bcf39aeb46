"""Runbooks for pages: from Postgres or, while it is unavailable, from their files."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from django.contrib.auth.models import AnonymousUser
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.accounts.permissions import may
from controlplane.fleet.models import RedisNode
from controlplane.policies.models import Runbook
from controlplane.runbooks.format import Action, Document, read_runbook
from controlplane.runbooks.shipped import Text, shipped, split_title
from controlplane.status.read_facts import REDIS_FRESH_FOR
from dashboard.live.breakers import Breaker
from dashboard.live.overview import Live
from dashboard.live.runbook_values import Scene


@dataclass(frozen=True)
class Page:
    slug: str
    title: str
    body: str

    @cached_property
    def document(self) -> Document:
        return read_runbook(self.body)

    @property
    def symptom(self) -> str:
        """When to open it, for the list: the first words under its first heading."""
        paragraph = next(
            (
                token
                for before, token in zip(self.document.tokens, self.document.tokens[1:], strict=False)
                if before.type == "paragraph_open"
            ),
            None,
        )
        children = (paragraph.children or ()) if paragraph is not None else ()
        words = (" " if child.type == "softbreak" else child.content for child in children)
        return " ".join("".join(words).split())


def every_runbook() -> list[Page]:
    """Those in Postgres, and files that are not loaded there: alerts link to some of them."""
    try:
        pages = {row.slug: _page(row.slug, Text(row.title, row.body)) for row in Runbook.objects.all()}
    except (OperationalError, InterfaceError):
        pages = {}  # The files have to do, as for one page.
    for slug, text in shipped().items():
        pages.setdefault(slug, _page(slug, text))
    return sorted(pages.values(), key=lambda page: page.title)


def find_runbook(slug: str) -> Page | None:
    try:
        row = Runbook.objects.filter(slug=slug).first()
    except (OperationalError, InterfaceError):
        row = None  # Runbooks matter most when a store is down, so the file has to do.
    if row is not None:
        return _page(slug, Text(row.title, row.body))
    text = shipped().get(slug)
    return _page(slug, text) if text is not None else None


def _page(slug: str, text: Text) -> Page:
    # One that was written through the API may begin with its title again.
    inner = split_title(text.body)
    return Page(slug, text.title or slug, inner.body if inner.title == text.title else text.body)


def scene_of(live: Live, breaker: Breaker | None) -> Scene:
    """What the values are read from. Of Redis nothing is known while Postgres is down."""
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
