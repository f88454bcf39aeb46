"""The name of an endpoint, ``METHOD /route``, and the patterns of names.

In a pattern, ``*`` stands for any text. Every other character stands for itself, so the name of an endpoint
is a pattern of itself. The case of a method does not matter. ``GET`` includes ``HEAD``, which frameworks
answer with the handler of GET (RFC 9110, section 9.3.2).
"""

import re
from collections.abc import Callable
from fnmatch import translate
from functools import lru_cache


def endpoint_of(method: str, path: str) -> str:
    return f"{method.upper()} {path}"


def counted_endpoint(endpoint: str) -> str:
    """The name of the counter of an endpoint: that of GET for HEAD."""
    method, _, path = endpoint.partition(" ")
    if not path.startswith("/"):
        return endpoint  # a name without a method
    method = method.upper()
    return f"{'GET' if method == 'HEAD' else method} {path}"


def matches(endpoint: str, patterns: tuple[str, ...]) -> bool:
    return matcher(patterns)(endpoint) is not None


@lru_cache(maxsize=1024)
def matcher(patterns: tuple[str, ...]) -> Callable[[str], int | None]:
    """A function that returns the number of the first pattern that matches an endpoint."""
    groups = "|".join(f"({_expression(pattern)})" for pattern in patterns)
    match = re.compile(groups or "(?!)").match

    def first(endpoint: str) -> int | None:
        names = {endpoint, counted_endpoint(endpoint)}
        found = [one.lastindex or 1 for one in map(match, names) if one is not None]
        return min(found) - 1 if found else None

    return first


def starred(pattern: str) -> str:
    """``fnmatch`` without its sets and single characters: names contain brackets and question marks.

    The expression never goes back to an earlier ``*``, so its time does not explode.
    """
    return translate(pattern.replace("[", "[[]").replace("?", "[?]"))


def _expression(pattern: str) -> str:
    method, space, rest = pattern.partition(" ")
    if "*" in method or not space:
        method, space, rest = "", "", pattern
    return f"(?i:{re.escape(method)}){starred(space + rest)}"
