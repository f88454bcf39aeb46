"""CORS preflights: a browser asks, before a request of another origin, if it may send it.

A preflight never carries the headers of that request, so it has no tenant. It costs no quota. ``OPTIONS``
without both headers is a request like any other.
"""

from collections.abc import Mapping
from typing import Any


def in_scope(scope: Mapping[str, Any]) -> bool:
    """In a scope of ASGI."""
    if scope.get("method") != "OPTIONS":
        return False
    names = {name for name, _ in scope.get("headers", ())}
    return b"origin" in names and b"access-control-request-method" in names


def in_environ(environ: Mapping[str, Any]) -> bool:
    """In the environment of WSGI, or ``META`` of Django."""
    return (
        environ.get("REQUEST_METHOD") == "OPTIONS"
        and "HTTP_ORIGIN" in environ
        and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ
    )
