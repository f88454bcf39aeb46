"""Addresses of pages that other pages link to."""

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
