"""Releases that no upgrade can leave out: the only list of them."""

from collections.abc import Container
from typing import NamedTuple


class RequiredStop(NamedTuple):
    release: str
    #: The app and the name of the last migration of that release: a database with it has been there. If it
    #: was squashed, the squashed one: a database that was made with it has no other.
    migration: tuple[str, str]


#: In order. The first release that cannot upgrade from before a stop adds it here, with the reason in the
#: CHANGELOG and a row in docs/upgrading.md.
REQUIRED_STOPS: tuple[RequiredStop, ...] = ()


def first_skipped(applied: Container[tuple[str, str]]) -> RequiredStop | None:
    """The release that a database with these migrations needs first."""
    return next((stop for stop in REQUIRED_STOPS if stop.migration not in applied), None)
