"""Addresses of pages that other pages link to, and ids of elements."""

from zlib import crc32

from django.urls import reverse


def limit_editor(kind: str, owner: str, limit: str, /, **typed: str) -> str:
    """Return the address of the editor of the owner of a limit, with the focus on this limit.

    ``typed`` fills in columns of the limit; the first of them gets the focus, otherwise its size.
    """
    name = f"limit.{limit}"
    filled_in = {f"{name}.{column}": value for column, value in typed.items()}
    at = next(iter(filled_in), f"{name}.limit")
    key = {} if kind == "environment" else {"key": owner}
    return reverse("edit", args=[kind], query={**key, **filled_in, "at": at})


def element_id(name: str, part: str = "") -> str:
    """Return an id for a row about a thing, or a part of it, whose name may contain any character.

    By it, the page knows a row that changes its place in a list.
    """
    return f"{crc32(f'{name} {part}'.encode()):08x}"
