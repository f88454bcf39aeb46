"""The content of an exception: its causes, and the members of an exception group.

A ``TaskGroup`` raises a group, also for one failed task. A path leads from the exception to one innermost
cause. Each member of a group has its own path, and groups themselves are in none.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

Path: TypeAlias = tuple[BaseException, ...]

#: How many causes of an exception are looked at.
MAX_DEPTH = 5
#: Libraries whose errors have what they wrap as an argument.
_WRAPPING = frozenset({"requests", "urllib3", "httpcore", "httpcore2"})


def paths(error: BaseException) -> list[Path]:
    """At least one. What caused a group also caused its members.

    A group is entered once, so that a circle of causes ends.
    """
    found: list[Path] = []
    entered: set[int] = set()
    waiting: list[tuple[Path, BaseException, Path]] = [((), error, ())]
    while waiting:
        path, first, outer = waiting.pop()
        link: BaseException | None = first
        while link is not None and len(path) < MAX_DEPTH:
            if isinstance(link, BaseExceptionGroup):
                if id(link) in entered:
                    break
                entered.add(id(link))
                if link.__cause__ is not None:
                    outer = (*outer, link.__cause__)
                waiting.extend((path, one, outer) for one in reversed(link.exceptions))
                path = ()
                break
            path = (*path, link)
            link = link.__cause__ or _inner(link)
            if link is None and outer:
                *rest, link = outer
                outer = tuple(rest)
        if path:
            found.append(path)
    return found


def names(error: BaseException) -> Iterator[tuple[str, str]]:
    """Package and name of the error's class and of those it is derived from."""
    for one in type(error).__mro__:
        yield one.__module__.partition(".")[0], one.__name__


def attribute(owner: object, name: str) -> Any:
    """An attribute, or ``None``. httpx raises ``RuntimeError`` for the request of an error without one."""
    with contextlib.suppress(Exception):
        return getattr(owner, name, None)
    return None


def _inner(error: BaseException) -> BaseException | None:
    """Errors that these libraries wrap without ``raise ... from``."""
    package = type(error).__module__.partition(".")[0]
    if package == "urllib3":
        reason = attribute(error, "reason")
        if isinstance(reason, BaseException):
            return reason
    if package in _WRAPPING:
        return next((one for one in error.args if isinstance(one, BaseException)), None)
    return None
