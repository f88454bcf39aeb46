"""Whether a person made an entry of the audit or a revision, or a program or a task did: decided once."""

from typing import Any, TypeVar

from django.db.models import BooleanField, Exists, ExpressionWrapper, OuterRef, Q, QuerySet

from controlplane.accounts.models import User
from controlplane.audit.models import Entry
from controlplane.policies.models import Change, Revision

#: Places where no person was logged in, whatever name the author has.
_PROGRAMS = ("celery", "command", "sql")

Row = TypeVar("Row", Entry, Revision, Change)


def by_person(of: str = "") -> Q:
    """The condition that the page *People* lists the author. ``of``: the path to the row, ``revision__``.

    The name of a token is "token" and its own name: no username has a space.
    """
    listed = Exists(User.objects.filter(username=OuterRef(f"{of}actor")))
    return Q(listed) & ~Q(**{f"{of}origin__in": _PROGRAMS})


def with_authors(rows: QuerySet[Row], of: str = "") -> QuerySet[Row]:
    """The rows, each with ``by_person``."""
    # The models declare the attribute, for rows that are made without a query.
    untyped: Any = rows
    found: QuerySet[Row] = untyped.annotate(
        by_person=ExpressionWrapper(by_person(of), output_field=BooleanField())
    )
    return found
