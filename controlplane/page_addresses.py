"""The environment of a page is the first part of its address: ``/env/staging/breakers``.

Pages of production have no such part, so that addresses of earlier releases stay valid.
See docs/adr/0027-environment-in-the-address.md.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from django.urls import get_script_prefix, set_script_prefix

from fuseboard.contract.words import DEFAULT_ENVIRONMENT, is_slug

_ADDRESS = re.compile(r"/env/([^/]+)(/.*)?", re.DOTALL)


def split_address(path: str) -> tuple[str, str]:
    """Return the environment of a page, and the address of the page without it."""
    found = _ADDRESS.fullmatch(path)
    if found is None or not is_slug(found[1]):
        return DEFAULT_ENVIRONMENT, path
    return found[1], found[2] or "/"


def home_of(environment: str) -> str:
    """Return the address of the overview of an environment, with which all its addresses begin."""
    return "/" if environment == DEFAULT_ENVIRONMENT else f"/env/{environment}/"


@contextmanager
def links_into(environment: str) -> Iterator[None]:
    """Links that are made inside, by ``reverse`` or a template, lead to pages of this environment."""
    before = get_script_prefix()
    set_script_prefix(home_of(environment))
    try:
        yield
    finally:
        set_script_prefix(before)
